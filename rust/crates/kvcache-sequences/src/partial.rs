//! Owns the tokens of findable blocks, by the contents before them, so that the first tokens of a block can be found.
//!
//! Costs a map entry and the tokens of every findable block: for caches that ask for it only.

use std::collections::HashMap;

use kvcache_blocks::BlockId;
use kvcache_prefix::BlockHash;

use crate::Sequence;

/// How many blocks with the same contents before them are compared, the latest first.
const MOST_COMPARED: usize = 64;

#[derive(Debug)]
struct Entry {
    parent: BlockHash,
    tokens: Box<[u32]>,
}

/// Which tokens findable blocks hold, full and partial ones.
#[derive(Debug, Default)]
pub(crate) struct PartialIndex {
    children: HashMap<BlockHash, Vec<BlockId>>,
    entries: HashMap<BlockId, Entry>,
}

impl PartialIndex {
    /// Enters a block that holds `len` tokens of a sequence from `start`; false, and no change, where a media item
    /// starts in it, because then tokens do not tell its contents.
    pub(crate) fn add(&mut self, block: BlockId, sequence: &Sequence, start: usize, len: usize) -> bool {
        let end = start + len;
        let has_media = sequence
            .media
            .iter()
            .any(|item| (start..end).contains(&item.offset));
        let (false, Some(parent)) = (has_media, sequence.hash_of(start)) else {
            return false;
        };
        let tokens = sequence.tokens[start..end].into();
        self.children.entry(parent).or_default().push(block);
        self.entries.insert(block, Entry { parent, tokens });
        true
    }

    /// Takes a block out, where it is in.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let Some(entry) = self.entries.remove(&block) else {
            return;
        };
        if let Some(children) = self.children.get_mut(&entry.parent) {
            children.retain(|child| *child != block);
            if children.is_empty() {
                self.children.remove(&entry.parent);
            }
        }
    }

    /// The block behind `parent` that starts with the most of `tokens`, and how many those are; the latest of equals.
    pub(crate) fn longest(&self, parent: BlockHash, tokens: &[u32]) -> Option<(BlockId, usize)> {
        let children = self.children.get(&parent)?;
        let mut best = None;
        for block in children.iter().rev().take(MOST_COMPARED) {
            let held = &self.entries.get(block)?.tokens;
            let common = held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            if common > best.map_or(0, |(_, longest)| longest) {
                best = Some((*block, common));
            }
        }
        best
    }

    /// Number of tokens that a block holds, where it is in.
    pub(crate) fn num_tokens(&self, block: BlockId) -> Option<usize> {
        self.entries.get(&block).map(|entry| entry.tokens.len())
    }

    /// The blocks that are in, with a sign whether they can be reached from the contents before them.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (BlockId, bool)> + '_ {
        self.entries.iter().map(|(block, entry)| {
            let reached = self
                .children
                .get(&entry.parent)
                .is_some_and(|all| all.contains(block));
            (*block, reached)
        })
    }

    /// Number of blocks that can be reached.
    pub(crate) fn num_children(&self) -> usize {
        self.children.values().map(Vec::len).sum()
    }
}
