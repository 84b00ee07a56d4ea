//! The pool against a model of plain collections, under random operations.

use std::collections::VecDeque;

use kvcache_blocks::{BlockId, BlockPool, BlockState, PoolError};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
enum Operation {
    Allocate,
    Acquire(BlockId),
    Release(BlockId),
    Publish(BlockId),
    Unpublish(BlockId),
}

fn operation() -> impl Strategy<Value = Operation> {
    let block = 0..9_u32;
    prop_oneof![
        2 => Just(Operation::Allocate),
        1 => block.clone().prop_map(Operation::Acquire),
        2 => block.clone().prop_map(Operation::Release),
        2 => block.clone().prop_map(Operation::Publish),
        1 => block.prop_map(Operation::Unpublish),
    ]
}

struct Model {
    blocks: Vec<(u32, bool)>,
    cached: VecDeque<BlockId>,
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

    fn release(&mut self, block: BlockId) -> Result<(), PoolError> {
        let BlockState::InUse(n) = self.state(block)? else {
            return Err(PoolError::NotInUse(block));
        };
        self.blocks[block as usize].0 = n - 1;
        if self.blocks[block as usize] == (0, true) {
            self.cached.push_back(block);
        }
        Ok(())
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

fn allocate(pool: &mut BlockPool, model: &mut Model) {
    let allocation = pool.allocate();
    if model.has_free() {
        let allocation = allocation.expect("a block was free");
        assert!(!allocation.evicted);
        assert_eq!(model.state(allocation.block), Ok(BlockState::Free));
        model.blocks[allocation.block as usize] = (1, false);
    } else if let Some(expected) = model.cached.pop_front() {
        let allocation = allocation.expect("a block was cached");
        assert_eq!((allocation.block, allocation.evicted), (expected, true));
        model.blocks[expected as usize] = (1, false);
    } else {
        assert_eq!(allocation, None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agrees_with_the_model(size in 1..8_usize, operations in prop::collection::vec(operation(), 0..60)) {
        let mut pool = BlockPool::new(size).expect("a small pool");
        let mut model = Model { blocks: vec![(0, false); size], cached: VecDeque::new() };
        for operation in operations {
            match operation {
                Operation::Allocate => allocate(&mut pool, &mut model),
                Operation::Acquire(block) => prop_assert_eq!(pool.acquire(block), model.acquire(block)),
                Operation::Release(block) => prop_assert_eq!(pool.release(block), model.release(block)),
                Operation::Publish(block) => prop_assert_eq!(pool.publish(block), model.publish(block)),
                Operation::Unpublish(block) => prop_assert_eq!(pool.unpublish(block), model.unpublish(block)),
            }
            prop_assert_eq!(pool.check(), Ok(()));
            for block in 0..=size as BlockId {
                prop_assert_eq!(pool.state(block), model.state(block));
            }
            prop_assert_eq!(pool.eviction_order().collect::<Vec<_>>(), Vec::from(model.cached.clone()));
            prop_assert_eq!(pool.num_free() + pool.num_cached() + pool.num_used(), size);
        }
    }
}

#[test]
fn refuses_sizes_that_ids_cannot_name() {
    for size in [0, BlockPool::MAX_BLOCKS + 1] {
        assert_eq!(BlockPool::new(size).map(drop), Err(PoolError::BadSize(size)));
    }
}

#[test]
fn blocks_are_handed_out_in_order_at_first() {
    let mut pool = BlockPool::new(3).expect("a small pool");
    let order = std::iter::from_fn(|| pool.allocate())
        .map(|a| a.block)
        .collect::<Vec<_>>();
    assert_eq!(order, [0, 1, 2]);
}
