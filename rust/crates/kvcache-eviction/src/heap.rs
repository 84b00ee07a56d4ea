//! Owns a binary heap of blocks in flat arrays that also finds a block's place, so any block can leave or move.
//!
//! The heap does not hold the keys: each operation is given the order, `before(a, b)`, a strict total order.

use crate::BlockId;
use crate::links::NIL;

/// 8 bytes a block, allocated once.
#[derive(Debug, Clone)]
pub(crate) struct IndexHeap {
    heap: Vec<BlockId>,
    place: Vec<u32>,
}

impl IndexHeap {
    pub(crate) fn new(num_blocks: usize) -> Self {
        Self {
            heap: Vec::with_capacity(num_blocks),
            place: vec![NIL; num_blocks],
        }
    }

    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.place[block as usize] != NIL
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn first(&self) -> Option<BlockId> {
        self.heap.first().copied()
    }

    /// Adds a block that is not in the heap. O(log n).
    pub(crate) fn push(&mut self, block: BlockId, before: &impl Fn(BlockId, BlockId) -> bool) {
        self.heap.push(block);
        self.place[block as usize] = self.heap.len() as u32 - 1;
        self.sift_up(self.heap.len() - 1, before);
    }

    /// Takes out a block if it is in the heap. O(log n).
    pub(crate) fn remove(&mut self, block: BlockId, before: &impl Fn(BlockId, BlockId) -> bool) {
        let at = self.place[block as usize];
        if at == NIL {
            return;
        }
        self.heap.swap_remove(at as usize);
        self.place[block as usize] = NIL;
        if let Some(moved) = self.heap.get(at as usize).copied() {
            self.place[moved as usize] = at;
            self.reorder(moved, before);
        }
    }

    /// Finds the place of a block whose key changed, if it is in the heap. O(log n).
    pub(crate) fn reorder(&mut self, block: BlockId, before: &impl Fn(BlockId, BlockId) -> bool) {
        let at = self.place[block as usize];
        if at != NIL {
            let at = self.sift_up(at as usize, before);
            self.sift_down(at, before);
        }
    }

    fn sift_up(&mut self, mut at: usize, before: &impl Fn(BlockId, BlockId) -> bool) -> usize {
        while at > 0 {
            let above = (at - 1) / 2;
            if !before(self.heap[at], self.heap[above]) {
                break;
            }
            self.swap(at, above);
            at = above;
        }
        at
    }

    fn sift_down(&mut self, mut at: usize, before: &impl Fn(BlockId, BlockId) -> bool) {
        loop {
            let mut least = at;
            for below in [2 * at + 1, 2 * at + 2] {
                if below < self.heap.len() && before(self.heap[below], self.heap[least]) {
                    least = below;
                }
            }
            if least == at {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place[self.heap[a] as usize] = a as u32;
        self.place[self.heap[b] as usize] = b as u32;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.heap.capacity() * size_of::<BlockId>() + self.place.capacity() * size_of::<u32>()
    }

    /// Whether no block is before the one above it, and places and heap agree.
    pub(crate) fn is_consistent(&self, before: &impl Fn(BlockId, BlockId) -> bool) -> bool {
        let ordered = (1..self.heap.len()).all(|at| !before(self.heap[at], self.heap[(at - 1) / 2]));
        let placed = self.place.iter().filter(|at| **at != NIL).count() == self.heap.len();
        let mut blocks = self.heap.iter().enumerate();
        ordered && placed && blocks.all(|(at, block)| self.place[*block as usize] as usize == at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [u32; 6] = [5, 3, 9, 1, 7, 4];

    fn before(a: BlockId, b: BlockId) -> bool {
        KEYS[a as usize] < KEYS[b as usize]
    }

    fn full() -> IndexHeap {
        let mut heap = IndexHeap::new(KEYS.len());
        (0..KEYS.len()).for_each(|block| heap.push(block as BlockId, &before));
        heap
    }

    #[test]
    fn gives_blocks_in_order() {
        let mut heap = full();
        heap.remove(1, &before);
        heap.remove(1, &before); // no longer in it: nothing happens
        let order = std::iter::from_fn(|| {
            let first = heap.first()?;
            heap.remove(first, &before);
            Some(first)
        });
        assert_eq!(order.collect::<Vec<_>>(), [3, 5, 0, 4, 2]);
    }

    #[test]
    fn damage_is_found() {
        assert!(full().is_consistent(&before));
        let mut heap = full();
        heap.swap(0, 5);
        assert!(!heap.is_consistent(&before));
        let mut heap = full();
        heap.place.swap(2, 4);
        assert!(!heap.is_consistent(&before));
        let mut heap = full();
        heap.place[3] = NIL;
        assert!(!heap.is_consistent(&before));
    }
}
