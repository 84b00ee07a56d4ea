//! Owns the pool: which state each block is in and which block is handed out next.

use crate::list::{Links, List};

/// Index of a block in its pool.
pub type BlockId = u32;

/// A misuse of the pool. The pool is unchanged after any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The pool was asked for no block, or for more than ids can name.
    #[error("a pool holds 1 to {max} blocks, not {0}", max = BlockPool::MAX_BLOCKS)]
    BadSize(usize),
    /// The block id is not below the number of blocks.
    #[error("block {0} is outside the pool")]
    OutOfRange(BlockId),
    /// The block is free, so it has no contents to take or give back.
    #[error("block {0} is free")]
    IsFree(BlockId),
    /// The block has no owner, so there is no reference to give back.
    #[error("block {0} is not in use")]
    NotInUse(BlockId),
    /// The block has as many owners as can be counted.
    #[error("block {0} has too many references")]
    TooManyReferences(BlockId),
    /// The arrays contradict each other; only [`BlockPool::check`] says so.
    #[error("block pool: {0}")]
    Inconsistent(&'static str),
}

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

/// A fixed number of blocks with reference counts and a least-recently-used eviction order.
#[derive(Debug)]
pub struct BlockPool {
    references: Vec<u32>,
    published: Vec<bool>,
    links: Links,
    free: List,
    cached: List,
    evictions: u64,
}

impl BlockPool {
    /// The most blocks of a pool: ids must fit into a signed 32-bit integer, as block tables on devices hold them.
    pub const MAX_BLOCKS: usize = i32::MAX as usize;

    /// Makes a pool whose blocks are all free.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        if num_blocks == 0 || num_blocks > Self::MAX_BLOCKS {
            return Err(PoolError::BadSize(num_blocks));
        }
        let mut links = Links::new(num_blocks);
        let mut free = List::new();
        for block in 0..num_blocks {
            free.push_back(&mut links, block as BlockId);
        }
        Ok(Self {
            references: vec![0; num_blocks],
            published: vec![false; num_blocks],
            links,
            free,
            cached: List::new(),
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
        self.cached.len()
    }

    /// Number of blocks with an owner.
    pub fn num_used(&self) -> usize {
        self.num_blocks() - self.num_available()
    }

    /// Number of blocks that [`allocate`](Self::allocate) can hand out: free and cached ones.
    pub fn num_available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// Number of cached blocks given to new owners so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
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

    /// Hands out a free block, else the least recently used cached one, else nothing.
    pub fn allocate(&mut self) -> Option<Allocation> {
        let (block, evicted) = if let Some(block) = self.free.pop_front(&mut self.links) {
            (block, false)
        } else {
            (self.cached.pop_front(&mut self.links)?, true)
        };
        self.references[block as usize] = 1;
        self.published[block as usize] = false;
        self.evictions += u64::from(evicted);
        Some(Allocation { block, evicted })
    }

    /// Adds an owner to a block that is in use or cached.
    pub fn acquire(&mut self, block: BlockId) -> Result<(), PoolError> {
        match self.state(block)? {
            BlockState::Free => Err(PoolError::IsFree(block)),
            BlockState::Cached => {
                self.cached.remove(&mut self.links, block);
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

    /// Takes an owner away. The last one leaves the block cached (most recently used) or free.
    ///
    /// Blocks released earlier are evicted earlier: give back the deepest block of a chain first.
    pub fn release(&mut self, block: BlockId) -> Result<(), PoolError> {
        let BlockState::InUse(n) = self.state(block)? else {
            return Err(PoolError::NotInUse(block));
        };
        self.references[block as usize] = n - 1;
        if n == 1 {
            if self.published[block as usize] {
                self.cached.push_back(&mut self.links, block);
            } else {
                self.free.push_front(&mut self.links, block);
            }
        }
        Ok(())
    }

    /// Marks a block in use as worth keeping after its last owner left.
    pub fn publish(&mut self, block: BlockId) -> Result<(), PoolError> {
        let BlockState::InUse(_) = self.state(block)? else {
            return Err(PoolError::NotInUse(block));
        };
        self.published[block as usize] = true;
        Ok(())
    }

    /// Takes the mark away; a cached block becomes free.
    pub fn unpublish(&mut self, block: BlockId) -> Result<(), PoolError> {
        match self.state(block)? {
            BlockState::Free => return Err(PoolError::IsFree(block)),
            BlockState::Cached => {
                self.cached.remove(&mut self.links, block);
                self.free.push_front(&mut self.links, block);
            }
            BlockState::InUse(_) => {}
        }
        self.published[block as usize] = false;
        Ok(())
    }

    /// The cached blocks in the order of their eviction.
    pub fn eviction_order(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.cached.iter(&self.links)
    }

    /// Checks every invariant of the pool, in time linear in its size.
    pub fn check(&self) -> Result<(), PoolError> {
        if !self.free.is_consistent(&self.links) || !self.cached.is_consistent(&self.links) {
            return Err(PoolError::Inconsistent(
                "a list's links, ends and length disagree",
            ));
        }
        let mut listed = vec![None; self.num_blocks()];
        let free = self.free.iter(&self.links).map(|block| (block, BlockState::Free));
        let cached = self
            .cached
            .iter(&self.links)
            .map(|block| (block, BlockState::Cached));
        for (block, state) in free.chain(cached) {
            if listed[block as usize].replace(state).is_some() {
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
        Ok(())
    }
}
