//! Owns the doubly linked lists threaded through the blocks; links are indices in flat arrays, not pointers.

use crate::BlockId;

/// "No block" in a link.
pub(crate) const NIL: BlockId = BlockId::MAX;
/// In `next`: the block is in no list. Pools hold too few blocks for a link to be mistaken for it.
const ABSENT: BlockId = BlockId::MAX - 1;

/// The links of all blocks: 8 bytes a block. A block is in at most one list, so one pair of arrays serves them all.
#[derive(Debug)]
pub struct Links {
    prev: Vec<BlockId>,
    next: Vec<BlockId>,
}

impl Links {
    /// Links of blocks that are in no list.
    pub fn new(num_blocks: usize) -> Self {
        Self {
            prev: vec![NIL; num_blocks],
            next: vec![ABSENT; num_blocks],
        }
    }

    /// Blocks that can be linked.
    pub fn num_blocks(&self) -> usize {
        self.next.len()
    }

    /// Whether a block is in a list; None for ids outside the pool.
    pub fn is_listed(&self, block: BlockId) -> Option<bool> {
        self.next.get(block as usize).map(|next| *next != ABSENT)
    }

    /// Blocks that are in a list; linear.
    pub fn num_listed(&self) -> usize {
        self.next.iter().filter(|next| **next != ABSENT).count()
    }

    /// Bytes of the arrays as they are allocated.
    pub fn memory_bytes(&self) -> usize {
        (self.prev.capacity() + self.next.capacity()) * size_of::<BlockId>()
    }
}

/// One list: its ends.
#[derive(Debug, Clone, Copy)]
pub struct List {
    head: BlockId,
    tail: BlockId,
}

impl List {
    /// A list without blocks.
    pub const EMPTY: Self = Self { head: NIL, tail: NIL };

    /// The first block.
    pub fn front(self) -> Option<BlockId> {
        (self.head != NIL).then_some(self.head)
    }

    /// Whether both ends say that there is no block.
    pub fn is_empty(self) -> bool {
        self.head == NIL && self.tail == NIL
    }

    /// Adds a block that is in no list; the caller knows that it is in none.
    pub fn push_back(&mut self, links: &mut Links, block: BlockId) {
        links.prev[block as usize] = self.tail;
        links.next[block as usize] = NIL;
        if self.tail == NIL {
            self.head = block;
        } else {
            links.next[self.tail as usize] = block;
        }
        self.tail = block;
    }

    /// Takes a block out of this list; the caller knows that it is in it.
    pub fn remove(&mut self, links: &mut Links, block: BlockId) {
        let (prev, next) = (links.prev[block as usize], links.next[block as usize]);
        if prev == NIL {
            self.head = next;
        } else {
            links.next[prev as usize] = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            links.prev[next as usize] = prev;
        }
        links.prev[block as usize] = NIL;
        links.next[block as usize] = ABSENT;
    }

    /// The blocks from front to back. Stops after as many blocks as there are, so a cycle cannot hang a check.
    pub fn iter(self, links: &Links) -> impl Iterator<Item = BlockId> + use<'_> {
        let mut at = self.head;
        (0..links.num_blocks()).map_while(move |_| {
            let block = at;
            at = *links.next.get(block as usize)?;
            Some(block)
        })
    }

    /// The number of blocks, if forward links, backward links and ends tell the same story.
    pub fn consistent_len(self, links: &Links) -> Option<usize> {
        if self.head == NIL {
            return (self.tail == NIL).then_some(0);
        }
        let mut before = NIL;
        let mut count = 0;
        for block in self.iter(links) {
            if links.prev[block as usize] != before {
                return None;
            }
            before = block;
            count += 1;
        }
        let ends = before == self.tail && links.next.get(before as usize) == Some(&NIL);
        ends.then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> (Links, List) {
        let (mut links, mut list) = (Links::new(4), List::EMPTY);
        for block in [2, 0, 3] {
            list.push_back(&mut links, block);
        }
        (links, list)
    }

    #[test]
    fn every_damaged_link_is_found() {
        let (links, list) = three();
        assert_eq!(list.consistent_len(&links), Some(3));
        for block in [2, 0, 3] {
            let (mut damaged, list) = three();
            damaged.prev[block] = 1;
            assert_eq!(list.consistent_len(&damaged), None);
            for wrong in [block as BlockId, 1, 2] {
                let (mut damaged, list) = three();
                damaged.next[block] = wrong;
                assert_ne!(
                    list.consistent_len(&damaged),
                    Some(3),
                    "next of {block} = {wrong}"
                );
            }
        }
        let (links, mut list) = three();
        list.tail = 0;
        assert_eq!(list.consistent_len(&links), None);
    }
}
