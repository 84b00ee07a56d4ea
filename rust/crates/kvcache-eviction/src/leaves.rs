//! Owns which cached blocks may be evicted: the leaves, that is those that no cached block names as its parent.
//!
//! Contents are found through their chain from its start. If a middle block were evicted, those behind it would
//! keep their memory and could not be found. So only leaves compete, in a heap; a block joins when its last cached
//! child left. Parents that form a circle (a caller's mistake, or a block id used anew) are not waited for: when
//! blocks are cached but none is a leaf, all of them compete, in linear time.

use crate::BlockId;
use crate::heap::IndexHeap;
use crate::links::NIL;

/// In `parent`: the block is not cached.
const ABSENT: BlockId = BlockId::MAX - 1;

/// 16 bytes a block, allocated once.
#[derive(Debug, Clone)]
pub(crate) struct Leaves {
    heap: IndexHeap,
    parent: Vec<BlockId>,
    /// How many cached blocks name this one as their parent; counted for blocks in use as well.
    children: Vec<u32>,
    len: usize,
}

impl Leaves {
    pub(crate) fn new(num_blocks: usize) -> Self {
        Self {
            heap: IndexHeap::new(num_blocks),
            parent: vec![ABSENT; num_blocks],
            children: vec![0; num_blocks],
            len: 0,
        }
    }

    /// Number of cached blocks, leaves or not.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether a block is cached; None for ids outside the pool.
    pub(crate) fn is_cached(&self, block: BlockId) -> Option<bool> {
        self.parent.get(block as usize).map(|parent| *parent != ABSENT)
    }

    /// Adds a block that is not cached. O(log n).
    pub(crate) fn insert(
        &mut self,
        block: BlockId,
        parent: Option<BlockId>,
        before: &impl Fn(BlockId, BlockId) -> bool,
    ) {
        self.len += 1;
        self.parent[block as usize] = NIL;
        if self.children[block as usize] == 0 {
            self.heap.push(block, before);
        }
        self.attach(block, parent.unwrap_or(NIL), before);
    }

    /// Takes out a cached block. O(log n).
    pub(crate) fn remove(&mut self, block: BlockId, before: &impl Fn(BlockId, BlockId) -> bool) {
        self.len -= 1;
        self.detach(block, before);
        self.heap.remove(block, before);
        self.parent[block as usize] = ABSENT;
    }

    /// Follows a change of the key or the parent of a cached block. O(log n).
    pub(crate) fn update(
        &mut self,
        block: BlockId,
        parent: Option<BlockId>,
        before: &impl Fn(BlockId, BlockId) -> bool,
    ) {
        self.heap.reorder(block, before);
        let parent = parent.unwrap_or(NIL);
        if parent != self.parent[block as usize] {
            self.detach(block, before);
            self.attach(block, parent, before);
        }
    }

    /// Follows a change of the key of a cached block. O(log n).
    pub(crate) fn reorder(&mut self, block: BlockId, before: &impl Fn(BlockId, BlockId) -> bool) {
        self.heap.reorder(block, before);
    }

    /// The first leaf; the first block where a circle of parents left no leaf; None if no block is cached.
    pub(crate) fn first(&self, before: &impl Fn(BlockId, BlockId) -> bool) -> Option<BlockId> {
        if self.len == 0 || self.heap.len() > 0 {
            return self.heap.first();
        }
        self.cached()
            .reduce(|first, block| if before(block, first) { block } else { first })
    }

    fn attach(&mut self, block: BlockId, parent: BlockId, before: &impl Fn(BlockId, BlockId) -> bool) {
        self.parent[block as usize] = parent;
        if parent != NIL {
            self.children[parent as usize] += 1;
            self.heap.remove(parent, before);
        }
    }

    fn detach(&mut self, block: BlockId, before: &impl Fn(BlockId, BlockId) -> bool) {
        let parent = std::mem::replace(&mut self.parent[block as usize], NIL);
        if parent == NIL {
            return;
        }
        self.children[parent as usize] -= 1;
        if self.children[parent as usize] == 0 && self.parent[parent as usize] != ABSENT {
            self.heap.push(parent, before);
        }
    }

    fn cached(&self) -> impl Iterator<Item = BlockId> + '_ {
        let blocks = self.parent.iter().enumerate();
        blocks
            .filter(|(_, parent)| **parent != ABSENT)
            .map(|(block, _)| block as BlockId)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let arrays =
            self.parent.capacity() * size_of::<BlockId>() + self.children.capacity() * size_of::<u32>();
        arrays + self.heap.memory_bytes()
    }

    /// Whether heap, parents, children and length tell the same story.
    pub(crate) fn is_consistent(&self, before: &impl Fn(BlockId, BlockId) -> bool) -> bool {
        let mut children = vec![0; self.children.len()];
        for block in self.cached() {
            let parent = self.parent[block as usize];
            if let Some(count) = children.get_mut(parent as usize) {
                *count += 1;
            } else if parent != NIL {
                return false;
            }
        }
        let leaves_compete = (0..self.parent.len()).all(|block| {
            let leaf = self.parent[block] != ABSENT && children[block] == 0;
            self.heap.contains(block as BlockId) == leaf
        });
        let counts = children == self.children && self.cached().count() == self.len;
        counts && leaves_compete && self.heap.is_consistent(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(a: BlockId, b: BlockId) -> bool {
        a < b
    }

    /// 0 is the parent of 1, and 1 of 2; 3 stands alone.
    fn chain() -> Leaves {
        let mut leaves = Leaves::new(5);
        for (block, parent) in [(2, Some(1)), (1, Some(0)), (0, None), (3, None)] {
            leaves.insert(block, parent, &before);
        }
        leaves
    }

    #[test]
    fn only_leaves_compete() {
        let mut leaves = chain();
        for expected in [2, 1, 0, 3] {
            assert_eq!(leaves.first(&before), Some(expected));
            assert!(leaves.is_consistent(&before));
            leaves.remove(expected, &before);
        }
        assert_eq!(leaves.first(&before), None);
    }

    #[test]
    fn a_late_child_takes_its_parent_out_of_the_heap() {
        let mut leaves = chain();
        leaves.insert(4, Some(3), &before);
        assert!(!leaves.heap.contains(3));
        leaves.update(4, Some(2), &before);
        assert!(leaves.heap.contains(3) && !leaves.heap.contains(2));
        assert!(leaves.is_consistent(&before));
    }

    #[test]
    fn damage_is_found() {
        let damages: [fn(&mut Leaves); 5] = [
            |leaves| leaves.children[3] = 1,
            |leaves| leaves.parent[2] = NIL,
            |leaves| leaves.parent[2] = 99,
            |leaves| leaves.len = 3,
            |leaves| leaves.heap.push(0, &before),
        ];
        for (which, damage) in damages.iter().enumerate() {
            let mut leaves = chain();
            assert!(leaves.is_consistent(&before));
            damage(&mut leaves);
            assert!(!leaves.is_consistent(&before), "damage {which}");
        }
    }
}
