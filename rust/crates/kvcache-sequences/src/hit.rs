//! Owns prefix hits: how many leading tokens every group can take from the cache, and attaching their blocks.

use kvcache_blocks::{BlockId, BlockState};
use kvcache_prefix::BlockName;

use crate::groups::Keeps;
use crate::host::HeldOnHost;
use crate::sequence::{Dropped, NO_BLOCK};
use crate::{CacheError, KvCache, Sequence};

/// Where the contents of a block of a hit are.
#[derive(Debug, Clone, Copy)]
enum Found {
    Device(BlockId),
    Host(BlockName),
}

/// The blocks of a hit in one group, shallowest first; those before them are not needed.
struct GroupHit {
    group: usize,
    first: usize,
    blocks: Vec<Found>,
}

impl KvCache {
    /// Attaches the cached blocks that hold the sequence's first tokens and returns how many tokens they hold.
    ///
    /// All groups agree on one length: a multiple of the layout's alignment, at most `max_tokens`, and never the last
    /// known token, whose logits must be computed. With partial reuse, the first tokens of one more block are copied.
    /// Contents on the host come back if there is room for all of the sequence's known tokens.
    pub fn match_prefix(&mut self, id: i64, max_tokens: Option<usize>) -> Result<usize, CacheError> {
        let sequence = self.sequence(id)?;
        if sequence.reserved != 0 {
            let reason = "match comes before grow: the sequence has tokens reserved";
            return Err(CacheError::invalid("seq", id, reason));
        }
        if !self.layout.is_hashed() {
            return Ok(0);
        }
        let known = sequence.tokens.len();
        let limit = known.saturating_sub(1).min(max_tokens.unwrap_or(usize::MAX));
        let (length, hits) = self.choose_hit(sequence, limit);
        let loaded = self.attach(id, length, &hits)?;
        let partial = match self.reuse_partial(id, length, limit) {
            Ok(partial) => partial,
            Err(error) => {
                self.shrink(id, 0)?;
                return Err(error);
            }
        };
        self.counters.queries += known as u64;
        self.counters.hits += (length + partial) as u64;
        self.counters.host_hits += loaded as u64;
        Ok(length + partial)
    }

    /// The longest hit with the host's blocks where they have room, else the longest without.
    fn choose_hit(&self, sequence: &Sequence, limit: usize) -> (usize, Vec<GroupHit>) {
        let device = self.longest_device_hit(sequence, limit);
        if self.host.is_some() {
            let anywhere = |name| self.find(name).is_some();
            let length = self.longest_hit(sequence, limit, anywhere);
            let hits = self.find_all(sequence, length);
            if length > device && self.has_room_for(sequence, &hits) {
                return (length, hits);
            }
        }
        (device, self.find_all(sequence, device))
    }

    /// Tokens that [`match_prefix`](Self::match_prefix) would find on device and host now, were there room; changes and
    /// counts nothing. Partial blocks are not looked for.
    pub fn lookup(&self, id: i64) -> Result<usize, CacheError> {
        let sequence = self.sequence(id)?;
        if !self.layout.is_hashed() {
            return Ok(0);
        }
        let limit = sequence.tokens.len().saturating_sub(1);
        Ok(self.longest_hit(sequence, limit, |name| self.find(name).is_some()))
    }

    pub(crate) fn longest_device_hit(&self, sequence: &Sequence, limit: usize) -> usize {
        if !self.layout.is_hashed() {
            return 0;
        }
        self.longest_hit(sequence, limit, |name| self.index.get(name).is_some())
    }

    /// The longest length up to `limit` at which every group has all the blocks that it needs to go on.
    fn longest_hit(&self, sequence: &Sequence, limit: usize, has: impl Fn(BlockName) -> bool) -> usize {
        let align = |tokens: usize| tokens / self.layout.alignment() * self.layout.alignment();
        let has_block =
            |group: usize, block: usize| self.layout.name(sequence, group, block).is_some_and(&has);
        let mut length = align(limit);
        for (group, spec) in self.layout.token_groups() {
            if spec.keeps == Keeps::All {
                let blocks = length / spec.block_size;
                let leading = (0..blocks).take_while(|block| has_block(group, *block)).count();
                length = align(leading * spec.block_size);
            }
        }
        if self.layout.keeps_all() {
            return length;
        }
        // A group that needs some of the blocks only may agree at a shorter length: go down until all do.
        loop {
            let before = length;
            for (group, spec) in self.layout.token_groups() {
                while let Some(missing) = (spec.first_needed(length)..length / spec.block_size)
                    .rev()
                    .find(|block| !has_block(group, *block))
                {
                    length = align(missing * spec.block_size);
                }
            }
            if length == before {
                return length;
            }
        }
    }

    fn find(&self, name: BlockName) -> Option<Found> {
        if let Some(block) = self.index.get(name) {
            return Some(Found::Device(block));
        }
        let host = self.host.as_ref()?;
        host.holds(name).then_some(Found::Host(name))
    }

    fn find_all(&self, sequence: &Sequence, length: usize) -> Vec<GroupHit> {
        let groups = self.layout.token_groups().map(|(group, spec)| {
            let (first, end) = (spec.first_needed(length), length / spec.block_size);
            let names = (first..end).map_while(|block| self.layout.name(sequence, group, block));
            GroupHit {
                group,
                first,
                blocks: names.map_while(|name| self.find(name)).collect(),
            }
        });
        groups.collect()
    }

    /// The blocks of a hit of this length, deepest first.
    pub(crate) fn blocks_of_hit(&self, sequence: &Sequence, length: usize) -> Vec<Dropped> {
        let mut blocks = Vec::new();
        for hit in self.find_all(sequence, length) {
            let size = self.layout.groups()[hit.group].block_size;
            let mut parent = None;
            for (i, found) in hit.blocks.into_iter().enumerate() {
                let Found::Device(block) = found else { break };
                let depth = (hit.first + i + 1) * size;
                blocks.push(Dropped {
                    block,
                    parent,
                    depth,
                    size,
                });
                parent = Some(block);
            }
        }
        blocks.sort_by_key(|block| std::cmp::Reverse(block.depth));
        blocks
    }

    /// Whether blocks for all known tokens are at hand, so that what is loaded from the host is of use.
    fn has_room_for(&self, sequence: &Sequence, hits: &[GroupHit]) -> bool {
        let mut needed = 0;
        let mut cached = 0;
        for group in 0..self.layout.groups().len() {
            needed += sequence.entries(group, sequence.tokens.len());
            let Some(hit) = hits.iter().find(|hit| hit.group == group) else {
                continue;
            };
            needed -= hit.first.min(self.layout.entries(group, sequence.tokens.len()));
            for found in &hit.blocks {
                if let Found::Device(block) = found {
                    needed -= 1;
                    cached += usize::from(self.pool.state(*block) == Ok(BlockState::Cached));
                }
            }
        }
        needed + cached <= self.pool.num_available_to(sequence.account)
    }

    /// Takes the blocks of a hit; all or none. Returns the tokens that come from the host.
    fn attach(&mut self, id: i64, length: usize, hits: &[GroupHit]) -> Result<usize, CacheError> {
        let mut taken = Vec::new();
        // Deepest first, which is the order in which the policy wants to hear of reuse.
        for hit in hits {
            for found in hit.blocks.iter().rev() {
                let Found::Device(block) = *found else { continue };
                if let Err(error) = self.pool.reuse(block) {
                    self.undo(&taken)?;
                    return Err(error.into());
                }
                taken.push(block);
            }
        }
        let (held, fresh) = match self.take_for_loads(id, hits) {
            Ok(taken) => taken,
            Err(error) => {
                self.undo(&taken)?;
                return Err(error);
            }
        };
        let awaited = held.first().map(|held| held.id);
        let mut loads = held.into_iter().zip(fresh);
        let mut loaded = 0;
        for hit in hits {
            let size = self.layout.groups()[hit.group].block_size;
            let mut blocks = vec![NO_BLOCK; hit.first];
            let mut on_device = 0;
            for found in &hit.blocks {
                match *found {
                    Found::Device(block) => blocks.push(block),
                    Found::Host(_) => {
                        let spare =
                            || CacheError::Invariant("a hit needs more blocks than were counted".into());
                        let (held, block) = loads.next().ok_or_else(spare)?;
                        self.load(held, block);
                        blocks.push(block);
                    }
                }
                let unbroken = blocks.len() == hit.first + on_device + 1;
                on_device += usize::from(unbroken && matches!(found, Found::Device(_)));
            }
            loaded = loaded.max((hit.blocks.len() - on_device) * size);
            let sequence = self.sequence_mut(id)?;
            let table = &mut sequence.groups[hit.group];
            (table.blocks, table.first) = (blocks, hit.first);
            // What comes from the host is published with the first commit, when it has arrived.
            table.settled = hit.first + on_device;
        }
        let sequence = self.sequence_mut(id)?;
        (sequence.reserved, sequence.computed) = (length, length);
        sequence.awaits_load = awaited;
        Ok(loaded)
    }

    /// Holds what a hit finds on the host, and takes a block of the device for each; all or none.
    fn take_for_loads(
        &mut self,
        id: i64,
        hits: &[GroupHit],
    ) -> Result<(Vec<HeldOnHost>, Vec<BlockId>), CacheError> {
        let mut held = Vec::new();
        for found in hits.iter().flat_map(|hit| &hit.blocks) {
            if let Found::Host(name) = *found {
                held.push(self.hold_on_host(name)?);
            }
        }
        let account = self.sequence(id)?.account;
        match self.allocate_many(account, held.len()) {
            Ok(blocks) => Ok((held, blocks)),
            Err(error) => {
                self.let_go_on_host(&held)?;
                Err(error)
            }
        }
    }

    /// Copies the first tokens of a block that starts like the sequence goes on after `length` tokens.
    fn reuse_partial(&mut self, id: i64, length: usize, limit: usize) -> Result<usize, CacheError> {
        let Some(partial) = &self.partial else {
            return Ok(0);
        };
        let sequence = self.sequence(id)?;
        let block_size = self.layout.alignment();
        let end = limit.min(length + block_size);
        let end = sequence
            .media
            .iter()
            .map(|item| item.offset)
            .find(|offset| *offset >= length)
            .map_or(end, |offset| offset.min(end));
        let next = &sequence.tokens[length..end.max(length)];
        let found = sequence
            .hash_of(length)
            .and_then(|parent| partial.longest(parent, next));
        let Some((source, common)) = found else {
            return Ok(0);
        };
        let account = sequence.account;
        let is_cached = self.pool.state(source)? == BlockState::Cached;
        if self.pool.num_available_to(account) < 1 + usize::from(is_cached) {
            return Ok(0);
        }
        let info = Dropped {
            block: source,
            parent: sequence.groups[0].blocks.last().copied(),
            depth: length + block_size,
            size: block_size,
        }
        .info(sequence.retention, self.now_s);
        self.pool.reuse(source)?;
        let allocated = self.allocate_many(account, 1);
        let returned = self.put_back(source, &info);
        let destination = match (allocated, returned) {
            (Ok(blocks), Ok(())) => blocks[0],
            (Ok(blocks), Err(error)) => {
                self.undo(&blocks)?;
                return Err(error);
            }
            (Err(error), _) => return Err(error),
        };
        self.transfers.copy(source, destination);
        let sequence = self.sequence_mut(id)?;
        sequence.groups[0].blocks.push(destination);
        sequence.reserved = length + common;
        sequence.computed = length + common;
        Ok(common)
    }
}
