//! Owns the pool: which state each block is in and which block is handed out next.

use kvcache_eviction::{BlockId, BlockInfo, EvictionPolicy, evict_verified};

use crate::accounts::Accounts;
use crate::{AccountId, PoolError};

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// Holds nothing worth keeping; handed out first.
    Free,
    /// Has no owner, but contents that can be found again; evicted when no free block is left.
    Cached,
    /// Has this many owners.
    InUse(u32),
}

/// A block just handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// The block; it has one reference.
    pub block: BlockId,
    /// Whether it was a cached block: the caller must forget what it knew about its contents.
    pub evicted: bool,
}

/// What became of a block that an owner gave back.
#[derive(Debug, Clone, PartialEq)]
pub enum Released {
    /// Others hold it.
    Shared,
    /// It is free.
    Freed,
    /// It can be found until it is evicted.
    Cached,
    /// It could be found, but is free now: its account is over its quota, or the policy refused it and said why. The
    /// caller must forget what it knew about its contents.
    Dropped(Option<PoolError>),
}

/// A fixed number of blocks with reference counts, an eviction policy and accounts.
#[derive(Debug)]
pub struct BlockPool {
    references: Vec<u32>,
    published: Vec<bool>,
    /// Who is charged for a block that is not free.
    owners: Vec<AccountId>,
    /// The block given back last is handed out first.
    free: Vec<BlockId>,
    policy: Box<dyn EvictionPolicy>,
    num_cached: usize,
    accounts: Accounts,
    evictions: u64,
}

impl BlockPool {
    /// The most blocks of a pool: ids must fit into a signed 32-bit integer, as block tables on devices hold them.
    pub const MAX_BLOCKS: usize = i32::MAX as usize;

    /// Makes a pool whose blocks are all free. The policy must be empty.
    pub fn new(num_blocks: usize, policy: Box<dyn EvictionPolicy>) -> Result<Self, PoolError> {
        if num_blocks == 0 || num_blocks > Self::MAX_BLOCKS {
            return Err(PoolError::BadSize(num_blocks));
        }
        Ok(Self {
            references: vec![0; num_blocks],
            published: vec![false; num_blocks],
            owners: vec![0; num_blocks],
            free: (0..num_blocks as BlockId).rev().collect(),
            policy,
            num_cached: 0,
            accounts: Accounts::default(),
            evictions: 0,
        })
    }

    /// Number of blocks of the pool.
    pub fn num_blocks(&self) -> usize {
        self.references.len()
    }

    /// Number of blocks in state [`BlockState::Free`].
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Number of blocks in state [`BlockState::Cached`].
    pub fn num_cached(&self) -> usize {
        self.num_cached
    }

    /// Number of blocks with an owner.
    pub fn num_used(&self) -> usize {
        self.num_blocks() - self.num_available()
    }

    /// Number of blocks that nobody owns: free and cached ones.
    pub fn num_available(&self) -> usize {
        self.free.len() + self.num_cached
    }

    /// Number of blocks that [`allocate`](Self::allocate) can hand out to an account.
    pub fn num_available_to(&self, account: AccountId) -> usize {
        self.num_available().min(self.accounts.room(account))
    }

    /// Number of blocks that the account's quota alone leaves it, were the pool empty otherwise.
    pub fn room_within_quota(&self, account: AccountId) -> usize {
        self.accounts.room(account).min(self.references.len())
    }

    /// Number of cached blocks whose contents were given up so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Name of the eviction policy.
    pub fn policy_name(&self) -> &str {
        self.policy.name()
    }

    /// The state of a block.
    pub fn state(&self, block: BlockId) -> Result<BlockState, PoolError> {
        let references = *self
            .references
            .get(block as usize)
            .ok_or(PoolError::OutOfRange(block))?;
        Ok(match (references, self.published[block as usize]) {
            (0, false) => BlockState::Free,
            (0, true) => BlockState::Cached,
            (n, _) => BlockState::InUse(n),
        })
    }

    /// Whether the block's contents can be found by others; false for ids outside the pool.
    pub fn is_published(&self, block: BlockId) -> bool {
        self.published.get(block as usize).copied().unwrap_or(false)
    }

    /// Hands out a free block, else the cached one that the policy names, else nothing. An account with as many
    /// blocks as its quota gets its own cached block that was released first, else nothing.
    ///
    /// Where the policy fails, that block may be free: the contents of blocks that are not published any more are lost.
    pub fn allocate(&mut self, account: AccountId) -> Result<Option<Allocation>, PoolError> {
        let mut evicted = true;
        let block = if self.accounts.is_full(account) {
            let Some(block) = self.accounts.oldest_cached(account) else {
                return Ok(None);
            };
            self.policy.remove(block)?;
            if let Err(error) = self.policy.forget(block) {
                self.leave_cached(block);
                self.published[block as usize] = false;
                self.set_free(block);
                self.evictions += 1;
                return Err(error.into());
            }
            block
        } else if let Some(block) = self.free.pop() {
            evicted = false;
            block
        } else {
            let (references, published) = (&self.references, &self.published);
            let is_cached =
                |block: BlockId| references.get(block as usize) == Some(&0) && published[block as usize];
            let Some(block) = evict_verified(self.policy.as_mut(), self.num_cached, is_cached)? else {
                return Ok(None);
            };
            block
        };
        if evicted {
            self.leave_cached(block);
            self.accounts.discharge(self.owners[block as usize]);
            self.evictions += 1;
        }
        self.references[block as usize] = 1;
        self.published[block as usize] = false;
        self.owners[block as usize] = account;
        self.accounts.charge(account);
        Ok(Some(Allocation { block, evicted }))
    }

    fn leave_cached(&mut self, block: BlockId) {
        self.num_cached -= 1;
        self.accounts.left_cached(self.owners[block as usize], block);
    }

    /// Adds an owner to a block that is in use or cached.
    pub fn acquire(&mut self, block: BlockId) -> Result<(), PoolError> {
        match self.state(block)? {
            BlockState::Free => Err(PoolError::IsFree(block)),
            BlockState::Cached => {
                self.policy.remove(block)?;
                self.leave_cached(block);
                self.references[block as usize] = 1;
                Ok(())
            }
            BlockState::InUse(n) => {
                let more = n.checked_add(1).ok_or(PoolError::TooManyReferences(block))?;
                self.references[block as usize] = more;
                Ok(())
            }
        }
    }

    /// [`acquire`](Self::acquire) because the contents were found again, which the policy may count.
    pub fn reuse(&mut self, block: BlockId) -> Result<(), PoolError> {
        if self.state(block)? == BlockState::Free {
            return Err(PoolError::IsFree(block));
        }
        self.policy.touch(block)?;
        self.acquire(block)
    }

    /// Takes an owner away; the last one leaves the block cached or free.
    ///
    /// Blocks released earlier are evicted earlier on ties: give back the deepest block of a chain first.
    pub fn release(&mut self, block: BlockId, info: &BlockInfo) -> Result<Released, PoolError> {
        let BlockState::InUse(n) = self.state(block)? else {
            return Err(PoolError::NotInUse(block));
        };
        self.references[block as usize] = n - 1;
        if n > 1 {
            return Ok(Released::Shared);
        }
        if !self.published[block as usize] {
            self.set_free(block);
            return Ok(Released::Freed);
        }
        let owner = self.owners[block as usize];
        let refused = if self.accounts.is_over(owner) {
            None
        } else {
            match self.policy.insert(block, info) {
                Ok(()) => {
                    self.num_cached += 1;
                    self.accounts.became_cached(owner, block);
                    return Ok(Released::Cached);
                }
                Err(error) => Some(error.into()),
            }
        };
        self.published[block as usize] = false;
        self.set_free(block);
        self.evictions += 1;
        // The policy is told; that it may fail again changes nothing for the block.
        let forgotten = self.policy.forget(block).err().map(PoolError::from);
        Ok(Released::Dropped(refused.or(forgotten)))
    }

    fn set_free(&mut self, block: BlockId) {
        self.accounts.discharge(self.owners[block as usize]);
        self.free.push(block);
    }

    /// Marks a block in use as worth keeping after its last owner left.
    pub fn publish(&mut self, block: BlockId) -> Result<(), PoolError> {
        let BlockState::InUse(_) = self.state(block)? else {
            return Err(PoolError::NotInUse(block));
        };
        self.published[block as usize] = true;
        Ok(())
    }

    /// Takes the mark away; a cached block becomes free. The mark may be gone also where the policy fails.
    pub fn unpublish(&mut self, block: BlockId) -> Result<(), PoolError> {
        match self.state(block)? {
            BlockState::Free => return Err(PoolError::IsFree(block)),
            BlockState::Cached => {
                self.policy.remove(block)?;
                self.leave_cached(block);
                self.set_free(block);
            }
            BlockState::InUse(_) => {}
        }
        self.published[block as usize] = false;
        Ok(self.policy.forget(block)?)
    }

    /// Tells the policy the time in seconds.
    pub fn set_time(&mut self, now_s: f64) -> Result<(), PoolError> {
        Ok(self.policy.set_time(now_s)?)
    }

    /// Limits the blocks charged to an account, in use and cached, or lifts the limit.
    ///
    /// Returns the account's cached blocks that had to go at once; they are free, and the caller must forget what it
    /// knew about their contents. Blocks in use stay: an account may be over its quota until they are given back. Where
    /// the policy fails the quota is as before, and some of those blocks may be free.
    pub fn set_quota(&mut self, account: AccountId, quota: Option<usize>) -> Result<Vec<BlockId>, PoolError> {
        let mut order = self.policy.order()?;
        order.retain(|block| self.owners.get(*block as usize) == Some(&account));
        let num_blocks = self.num_blocks();
        let before = self.accounts.quota(account);
        self.accounts
            .set_quota(account, quota, num_blocks, order.into_iter());
        let mut dropped = Vec::new();
        while self.accounts.is_over(account)
            && let Some(block) = self.accounts.oldest_cached(account)
        {
            if let Err(error) = self.unpublish(block) {
                // The block may still be cached, above the quota: back to the one before.
                self.accounts
                    .set_quota(account, before, num_blocks, std::iter::empty());
                return Err(error);
            }
            self.evictions += 1;
            dropped.push(block);
        }
        Ok(dropped)
    }

    /// Blocks charged to an account.
    pub fn charged(&self, account: AccountId) -> usize {
        self.accounts.charged(account)
    }

    /// The account that a block is charged to; 0 for free blocks and ids outside the pool.
    pub fn owner(&self, block: BlockId) -> AccountId {
        self.owners.get(block as usize).copied().unwrap_or(0)
    }

    /// The cached blocks in the order of their eviction.
    pub fn eviction_order(&self) -> Result<Vec<BlockId>, PoolError> {
        Ok(self.policy.order()?)
    }

    /// Checks every invariant of the pool and its policy, in time linear in its size.
    pub fn check(&self) -> Result<(), PoolError> {
        self.policy.check()?;
        let order = self.policy.order()?;
        if order.len() != self.num_cached || self.policy.len() != self.num_cached {
            return Err(PoolError::Inconsistent(
                "the policy orders another number of blocks",
            ));
        }
        let mut listed = vec![None; self.num_blocks()];
        let free = self.free.iter().map(|block| (*block, BlockState::Free));
        let cached = order.iter().map(|block| (*block, BlockState::Cached));
        for (block, state) in free.chain(cached) {
            let entry = listed
                .get_mut(block as usize)
                .ok_or(PoolError::OutOfRange(block))?;
            if entry.replace(state).is_some() {
                return Err(PoolError::Inconsistent("a block is listed twice"));
            }
        }
        for (block, listed) in listed.into_iter().enumerate() {
            let agrees = match self.state(block as BlockId)? {
                BlockState::InUse(_) => listed.is_none(),
                state => listed == Some(state),
            };
            if !agrees {
                return Err(PoolError::Inconsistent("a block's list is not that of its state"));
            }
        }
        self.check_accounts()
    }

    fn check_accounts(&self) -> Result<(), PoolError> {
        if !self.accounts.is_consistent() {
            return Err(PoolError::Inconsistent(
                "a list's links, ends and length disagree",
            ));
        }
        let mut charged = vec![0; self.accounts.charges().len()];
        for block in 0..self.num_blocks() as BlockId {
            if self.state(block)? != BlockState::Free {
                let count = charged.get_mut(self.owners[block as usize] as usize);
                *count.ok_or(PoolError::Inconsistent("a block is charged to nobody"))? += 1;
            }
        }
        if charged != self.accounts.charges() {
            return Err(PoolError::Inconsistent(
                "an account's charge is not its number of blocks",
            ));
        }
        for (account, mut cached) in self.accounts.limited() {
            let is_own = |block: &BlockId| {
                self.owners[*block as usize] == account && self.state(*block) == Ok(BlockState::Cached)
            };
            let mut own = (0..self.num_blocks() as BlockId)
                .filter(is_own)
                .collect::<Vec<_>>();
            cached.sort_unstable();
            own.sort_unstable();
            if own != cached {
                return Err(PoolError::Inconsistent(
                    "an account's list is not its cached blocks",
                ));
            }
            if self.accounts.is_over(account) && !cached.is_empty() {
                return Err(PoolError::Inconsistent(
                    "an account over its quota has cached blocks",
                ));
            }
        }
        Ok(())
    }
}
