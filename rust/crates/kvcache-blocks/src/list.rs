//! Owns the doubly linked lists threaded through the blocks; links are indices in flat arrays, not pointers.

use crate::BlockId;

/// "No block" in a link; pools hold fewer than `u32::MAX` blocks.
pub(crate) const NIL: BlockId = BlockId::MAX;

/// The links of all blocks. A block is in at most one list at a time, so one pair of arrays serves every list.
#[derive(Debug)]
pub(crate) struct Links {
    prev: Vec<BlockId>,
    next: Vec<BlockId>,
}

impl Links {
    pub(crate) fn new(num_blocks: usize) -> Self {
        Self {
            prev: vec![NIL; num_blocks],
            next: vec![NIL; num_blocks],
        }
    }
}

/// One list: its ends and its length.
#[derive(Debug)]
pub(crate) struct List {
    head: BlockId,
    tail: BlockId,
    len: usize,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push_back(&mut self, links: &mut Links, block: BlockId) {
        links.prev[block as usize] = self.tail;
        links.next[block as usize] = NIL;
        if self.tail == NIL {
            self.head = block;
        } else {
            links.next[self.tail as usize] = block;
        }
        self.tail = block;
        self.len += 1;
    }

    pub(crate) fn front(&self) -> Option<BlockId> {
        (self.head != NIL).then_some(self.head)
    }

    pub(crate) fn pop_front(&mut self, links: &mut Links) -> Option<BlockId> {
        let block = self.head;
        if block == NIL {
            return None;
        }
        self.remove(links, block);
        Some(block)
    }

    /// Takes a block out of this list; the caller knows that it is in it.
    pub(crate) fn remove(&mut self, links: &mut Links, block: BlockId) {
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
        links.next[block as usize] = NIL;
        self.len -= 1;
    }

    /// The blocks from front to back. Stops after `len` blocks, so a cycle cannot hang a check.
    pub(crate) fn iter<'a>(&self, links: &'a Links) -> impl Iterator<Item = BlockId> + use<'a> {
        let mut at = self.head;
        (0..self.len).map_while(move |_| {
            let block = at;
            let next = links.next.get(block as usize)?;
            at = *next;
            Some(block)
        })
    }

    /// Whether forward links, backward links, ends and length tell the same story.
    pub(crate) fn is_consistent(&self, links: &Links) -> bool {
        let mut before = NIL;
        let mut count = 0;
        for block in self.iter(links) {
            if links.prev[block as usize] != before {
                return false;
            }
            before = block;
            count += 1;
        }
        let ends = before == self.tail && (before == NIL || links.next[before as usize] == NIL);
        ends && count == self.len
    }
}
