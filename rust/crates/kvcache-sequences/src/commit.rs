//! Owns what follows from written contents: full blocks become findable, blocks behind a window go back.

use std::sync::Arc;

use kvcache_blocks::BlockId;
use kvcache_prefix::{BlockName, next_hash};

use crate::sequence::{Dropped, NO_BLOCK};
use crate::{CacheError, KvCache, Sequence};

impl KvCache {
    /// States that the contents of the first `num_computed` tokens are written: publishes the full blocks among them
    /// and gives back those that no group needs to go on. A number below an earlier one changes nothing.
    pub fn commit(&mut self, id: i64, num_computed: usize) -> Result<(), CacheError> {
        self.check_commit(id, num_computed)?;
        self.settle(id, num_computed)
    }

    /// [`commit`](Self::commit) for many rows, all or none.
    pub fn commit_many(&mut self, ids: &[i64], num_computed: &[usize]) -> Result<(), CacheError> {
        if ids.len() != num_computed.len() {
            let reason = "needs as many elements as seqs";
            return Err(CacheError::invalid("num_computed", num_computed.len(), reason));
        }
        let rows = || ids.iter().copied().zip(num_computed.iter().copied());
        rows().try_for_each(|(id, n)| self.check_commit(id, n))?;
        rows().try_for_each(|(id, n)| self.settle(id, n))
    }

    fn check_commit(&self, id: i64, num_computed: usize) -> Result<(), CacheError> {
        let reserved = self.sequence(id)?.reserved;
        if num_computed > reserved {
            let reason = format!("sequence {id} has {reserved} tokens reserved");
            return Err(CacheError::invalid("num_computed", num_computed, reason));
        }
        Ok(())
    }

    fn settle(&mut self, id: i64, num_computed: usize) -> Result<(), CacheError> {
        let layout = Arc::clone(&self.layout);
        let sequence = self.sequence_mut(id)?;
        sequence.computed = sequence.computed.max(num_computed);
        let computed = sequence.computed;
        let known = sequence.tokens.len();
        for (group, spec) in layout.token_groups() {
            let table = &self.sequence(id)?.groups[group];
            let full = computed.min(known) / spec.block_size;
            let needed = spec.first_needed(computed);
            let (is_settled, first) = (table.settled >= full || !layout.is_hashed(), table.first);
            if !is_settled {
                self.publish_full(id, group, full)?;
            }
            if first < needed {
                self.leave_behind(id, group, needed)?;
            }
        }
        Ok(())
    }

    /// Makes the first `full` blocks of a group findable. Their tokens are known: tokens in flight may be computed before,
    /// and their block waits for its hash.
    fn publish_full(&mut self, id: i64, group: usize, full: usize) -> Result<(), CacheError> {
        let size = self.layout.groups()[group].block_size;
        let sequence = self
            .sequences
            .get_mut(&id)
            .ok_or(CacheError::UnknownSequence(id))?;
        let mut new = Run::default();
        for position in sequence.groups[group].settled..full {
            let block = sequence.groups[group].blocks[position];
            let Some(name) = self.layout.name(sequence, group, position) else {
                break;
            };
            // Where the contents are known under another block, that one stays.
            if block != NO_BLOCK && self.index.insert(name, block) {
                self.pool.publish(block)?;
                self.events.set_group(block, group);
                if let Some(partial) = &mut self.partial {
                    partial.add(block, sequence, position * size, size);
                }
                new.push(position);
            } else {
                self.events.stored(sequence, group, new.first, new.count)?;
                new = Run::default();
            }
        }
        self.events.stored(sequence, group, new.first, new.count)?;
        let table = &mut sequence.groups[group];
        table.settled = table.settled.max(full);
        Ok(())
    }

    /// Gives back the blocks of a group before `needed`, once they are settled in the index.
    fn leave_behind(&mut self, id: i64, group: usize, needed: usize) -> Result<(), CacheError> {
        let is_hashed = self.layout.is_hashed();
        let size = self.layout.groups()[group].block_size;
        let sequence = self.sequence_mut(id)?;
        let retention = sequence.retention;
        let table = &mut sequence.groups[group];
        let needed = needed
            .min(table.blocks.len())
            .min(if is_hashed { table.settled } else { usize::MAX });
        if needed <= table.first {
            return Ok(());
        }
        let mut dropped = Vec::with_capacity(needed - table.first);
        for position in (table.first..needed).rev() {
            let block = std::mem::replace(&mut table.blocks[position], NO_BLOCK);
            let parent = (position > table.first).then(|| table.blocks[position - 1]);
            dropped.push(Dropped {
                block,
                parent,
                depth: (position + 1) * size,
                size,
            });
        }
        table.first = needed;
        self.give_back(&dropped, retention)
    }

    /// Makes a sequence's partial last block findable before it is given back, where partial blocks are reused.
    pub(crate) fn publish_tail(&mut self, id: i64) -> Result<(), CacheError> {
        let sequence = self.sequences.get(&id).ok_or(CacheError::UnknownSequence(id))?;
        let Some(partial) = &mut self.partial else {
            return Ok(());
        };
        if sequence.awaits_load.is_some() {
            return Ok(());
        }
        let Some(tail) = tail_of(sequence, self.layout.hash_unit()) else {
            return Ok(());
        };
        if self.index.insert(tail.name, tail.block) {
            self.pool.publish(tail.block)?;
            partial.add(tail.block, sequence, tail.start, tail.len);
        }
        Ok(())
    }
}

/// Consecutive blocks that became findable together.
#[derive(Debug, Default)]
struct Run {
    first: usize,
    count: usize,
}

impl Run {
    fn push(&mut self, position: usize) {
        if self.count == 0 {
            self.first = position;
        }
        self.count += 1;
    }
}

struct Tail {
    block: BlockId,
    name: BlockName,
    start: usize,
    len: usize,
}

/// The partial block of group 0 whose tokens are known and computed, if all blocks before it are settled and no media
/// item starts in it.
fn tail_of(sequence: &Sequence, size: usize) -> Option<Tail> {
    let table = &sequence.groups[0];
    let end = sequence.computed.min(sequence.tokens.len());
    let (full, len) = (end / size, end % size);
    let has_media = sequence
        .media
        .iter()
        .any(|item| (full * size..end).contains(&item.offset));
    if len == 0 || table.settled < full || has_media {
        return None;
    }
    let start = full * size;
    let parent = sequence.hash_of(start)?;
    Some(Tail {
        block: *table.blocks.get(full)?,
        name: BlockName::new(
            next_hash(parent, &sequence.tokens[start..end], start, &sequence.media),
            0,
        ),
        start,
        len,
    })
}
