//! The pool against a model of plain collections, under random operations.

use std::collections::{BTreeMap, VecDeque};

use kvcache_blocks::{AccountId, BlockId, BlockInfo, BlockPool, BlockState, PoolError, Released};
use kvcache_eviction::Lru;
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
enum Operation {
    Allocate(AccountId),
    SetQuota(AccountId, Option<usize>),
    Acquire(BlockId),
    Release(BlockId),
    Publish(BlockId),
    Unpublish(BlockId),
}

fn operation() -> impl Strategy<Value = Operation> {
    let block = 0..9_u32;
    prop_oneof![
        3 => (0..3_u32).prop_map(Operation::Allocate),
        1 => (0..3_u32, prop::option::of(0..6_usize)).prop_map(|(account, quota)| Operation::SetQuota(account, quota)),
        1 => block.clone().prop_map(Operation::Acquire),
        2 => block.clone().prop_map(Operation::Release),
        2 => block.clone().prop_map(Operation::Publish),
        1 => block.prop_map(Operation::Unpublish),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    AnyFree,
    Victim(BlockId),
    Nothing,
}

struct Model {
    /// References, and whether the block is published.
    blocks: Vec<(u32, bool)>,
    owners: Vec<AccountId>,
    cached: VecDeque<BlockId>,
    quotas: BTreeMap<AccountId, usize>,
}

impl Model {
    fn state(&self, block: BlockId) -> Result<BlockState, PoolError> {
        match self.blocks.get(block as usize) {
            None => Err(PoolError::OutOfRange(block)),
            Some((0, false)) => Ok(BlockState::Free),
            Some((0, true)) => Ok(BlockState::Cached),
            Some((n, _)) => Ok(BlockState::InUse(*n)),
        }
    }

    fn charged(&self, account: AccountId) -> usize {
        let taken = |block: &usize| self.blocks[*block] != (0, false) && self.owners[*block] == account;
        (0..self.blocks.len()).filter(taken).count()
    }

    fn is_over(&self, account: AccountId) -> bool {
        self.quotas
            .get(&account)
            .is_some_and(|quota| self.charged(account) > *quota)
    }

    fn own_cached(&self, account: AccountId) -> Option<BlockId> {
        self.cached
            .iter()
            .copied()
            .find(|block| self.owners[*block as usize] == account)
    }

    fn set_quota(&mut self, account: AccountId, quota: Option<usize>) -> Vec<BlockId> {
        self.quotas.remove(&account);
        self.quotas.extend(quota.map(|quota| (account, quota)));
        let mut dropped = vec![];
        while self.is_over(account)
            && let Some(block) = self.own_cached(account)
        {
            self.cached.retain(|b| *b != block);
            self.blocks[block as usize] = (0, false);
            dropped.push(block);
        }
        dropped
    }

    /// What the account must get.
    fn next(&self, account: AccountId) -> Next {
        let quota = self.quotas.get(&account);
        if quota.is_some_and(|quota| self.charged(account) >= *quota) {
            return self.own_cached(account).map_or(Next::Nothing, Next::Victim);
        }
        if self.has_free() {
            return Next::AnyFree;
        }
        self.cached.front().copied().map_or(Next::Nothing, Next::Victim)
    }

    fn has_free(&self) -> bool {
        self.blocks.contains(&(0, false))
    }

    fn acquire(&mut self, block: BlockId) -> Result<(), PoolError> {
        if self.state(block)? == BlockState::Free {
            return Err(PoolError::IsFree(block));
        }
        self.cached.retain(|b| *b != block);
        self.blocks[block as usize].0 += 1;
        Ok(())
    }

    fn release(&mut self, block: BlockId) -> Result<Released, PoolError> {
        let BlockState::InUse(n) = self.state(block)? else {
            return Err(PoolError::NotInUse(block));
        };
        self.blocks[block as usize].0 = n - 1;
        Ok(match self.blocks[block as usize] {
            (0, false) => Released::Freed,
            (0, true) if self.is_over(self.owners[block as usize]) => {
                self.blocks[block as usize].1 = false;
                Released::Dropped(None)
            }
            (0, true) => {
                self.cached.push_back(block);
                Released::Cached
            }
            _ => Released::Shared,
        })
    }

    fn publish(&mut self, block: BlockId) -> Result<(), PoolError> {
        let BlockState::InUse(_) = self.state(block)? else {
            return Err(PoolError::NotInUse(block));
        };
        self.blocks[block as usize].1 = true;
        Ok(())
    }

    fn unpublish(&mut self, block: BlockId) -> Result<(), PoolError> {
        if self.state(block)? == BlockState::Free {
            return Err(PoolError::IsFree(block));
        }
        self.cached.retain(|b| *b != block);
        self.blocks[block as usize].1 = false;
        Ok(())
    }
}

fn allocate(pool: &mut BlockPool, model: &mut Model, account: AccountId) {
    let room = pool.num_available_to(account);
    let allocation = pool.allocate(account).expect("the policy does not fail");
    let expected = model.next(account);
    assert_eq!(room > 0, expected != Next::Nothing);
    let Some(allocation) = allocation else {
        assert_eq!(expected, Next::Nothing);
        return;
    };
    let block = allocation.block;
    if expected == Next::AnyFree {
        assert!(!allocation.evicted);
        assert_eq!(model.state(block), Ok(BlockState::Free));
    } else {
        assert_eq!((Next::Victim(block), allocation.evicted), (expected, true));
        model.cached.retain(|b| *b != block);
    }
    model.blocks[block as usize] = (1, false);
    model.owners[block as usize] = account;
}

fn pool_of(num_blocks: usize) -> Result<BlockPool, PoolError> {
    BlockPool::new(num_blocks, Box::new(Lru::new(num_blocks.clamp(1, 64))?))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn agrees_with_the_model(size in 1..8_usize, operations in prop::collection::vec(operation(), 0..60)) {
        let mut pool = pool_of(size).expect("a small pool");
        let mut model = Model {
            blocks: vec![(0, false); size],
            owners: vec![0; size],
            cached: VecDeque::new(),
            quotas: BTreeMap::new(),
        };
        for operation in operations {
            match operation {
                Operation::Allocate(account) => allocate(&mut pool, &mut model, account),
                Operation::SetQuota(account, quota) => {
                    prop_assert_eq!(pool.set_quota(account, quota), Ok(model.set_quota(account, quota)));
                }
                Operation::Acquire(block) => prop_assert_eq!(pool.acquire(block), model.acquire(block)),
                Operation::Release(block) => {
                    prop_assert_eq!(pool.release(block, &BlockInfo::default()), model.release(block));
                }
                Operation::Publish(block) => prop_assert_eq!(pool.publish(block), model.publish(block)),
                Operation::Unpublish(block) => prop_assert_eq!(pool.unpublish(block), model.unpublish(block)),
            }
            prop_assert_eq!(pool.check(), Ok(()));
            for block in 0..=size as BlockId {
                prop_assert_eq!(pool.state(block), model.state(block));
            }
            prop_assert_eq!(pool.eviction_order(), Ok(Vec::from(model.cached.clone())));
            for account in 0..3 {
                prop_assert_eq!(pool.charged(account), model.charged(account));
            }
            prop_assert_eq!(pool.num_free() + pool.num_cached() + pool.num_used(), size);
        }
    }
}

#[test]
fn refuses_sizes_that_ids_cannot_name() {
    for size in [0, BlockPool::MAX_BLOCKS + 1] {
        assert_eq!(pool_of(size).map(drop), Err(PoolError::BadSize(size)));
    }
}

#[test]
fn blocks_are_handed_out_in_order_at_first() {
    let mut pool = pool_of(3).expect("a small pool");
    let order = std::iter::from_fn(|| pool.allocate(0).expect("the policy does not fail"))
        .map(|a| a.block)
        .collect::<Vec<_>>();
    assert_eq!(order, [0, 1, 2]);
}
