//! Owns one sequence: its known tokens, their block hashes, its block tables and how far each of them reaches.

use std::sync::Arc;

use kvcache_blocks::{BlockId, BlockInfo};
use kvcache_prefix::{BlockHash, ChainKeys, KeyError, Media, extend_chain, root_hash};
use kvcache_tiers::TransferId;

use crate::groups::Keeps;
use crate::{CacheError, Layout};

/// "No block" in a table: the group does not need the tokens there any more. Shown as -1 outside.
pub const NO_BLOCK: BlockId = BlockId::MAX;

/// The blocks of a sequence in one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GroupTable {
    /// By position; [`NO_BLOCK`] before `first`.
    pub(crate) blocks: Vec<BlockId>,
    /// Entries before it are given back already.
    pub(crate) first: usize,
    /// Leading entries that are settled in the prefix index: published, or known under another block, or given back.
    pub(crate) settled: usize,
}

impl GroupTable {
    /// The blocks that are held.
    pub(crate) fn held(&self) -> &[BlockId] {
        &self.blocks[self.first.min(self.blocks.len())..]
    }

    /// Cuts the table to `n` entries and hands over the blocks behind them, deepest first.
    fn cut(&mut self, n: usize, block_size: usize, into: &mut Vec<Dropped>) {
        for position in (n.max(self.first)..self.blocks.len()).rev() {
            into.push(Dropped {
                block: self.blocks[position],
                parent: (position > self.first).then(|| self.blocks[position - 1]),
                depth: (position + 1) * block_size,
                size: block_size,
            });
        }
        self.blocks.truncate(n);
        self.first = self.first.min(n);
        self.settled = self.settled.min(n);
    }
}

/// Tokens of context at which attending to them costs as much as the rest of a token's work, roughly, for models of a
/// few billion parameters.
const ATTENTION_SCALE: f32 = 32_768.0;

/// A block that a sequence gives up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dropped {
    pub(crate) block: BlockId,
    /// The block before it in its table, if held.
    pub(crate) parent: Option<BlockId>,
    /// Tokens of the sequence up to the block's end.
    pub(crate) depth: usize,
    /// Tokens of the block.
    pub(crate) size: usize,
}

impl Dropped {
    /// What the eviction policy is told about it.
    pub(crate) fn info(&self, retention: Retention, now_s: f64) -> BlockInfo {
        BlockInfo {
            priority: retention.priority,
            expires_at: retention.ttl_s.map(|ttl| now_s + ttl),
            cost: self.size as f32 * (1.0 + self.depth as f32 / ATTENTION_SCALE),
            parent: self.parent,
        }
    }
}

/// How long and how dearly the blocks of a sequence are kept once nobody holds them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Retention {
    /// Higher is evicted later, under a policy that knows priorities.
    pub priority: i32,
    /// Seconds after the last owner left during which the priority counts; `None` for ever.
    pub ttl_s: Option<f64>,
}

/// A sequence that is not in a cache yet, or no more.
///
/// Making one hashes its full blocks, which needs no cache: callers can do it outside their lock.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Tokens whose ids are known.
    pub(crate) tokens: Vec<u32>,
    /// Hash after each `hash_unit` known tokens; empty without prefix caching.
    pub(crate) hashes: Vec<BlockHash>,
    /// By group.
    pub(crate) groups: Vec<GroupTable>,
    /// Tokens that the tables have room for, as granted.
    pub(crate) reserved: usize,
    /// Leading tokens whose contents are written.
    pub(crate) computed: usize,
    /// Tokens of the encoder, for groups that hold those.
    pub(crate) encoder_tokens: usize,
    /// The first of the loads from the host that the last hit needs, until their end is told: a partial block of the
    /// sequence does not become findable before.
    pub(crate) awaits_load: Option<TransferId>,
    pub(crate) media: Vec<Media>,
    pub(crate) lora: Option<String>,
    is_salted: bool,
    pub(crate) account: u32,
    pub(crate) retention: Retention,
    root: Option<BlockHash>,
    layout: Arc<Layout>,
}

impl Sequence {
    /// Makes a sequence of these known tokens, ready for [`KvCache::open`](crate::KvCache::open) of a cache with
    /// this layout.
    pub fn new(layout: &Arc<Layout>, tokens: Vec<u32>, keys: ChainKeys) -> Result<Self, CacheError> {
        keys.validate(tokens.len()).map_err(|error| {
            let (KeyError::MediaOrder(at) | KeyError::EmptyDigest(at) | KeyError::MediaBeyondTokens(at)) =
                error;
            CacheError::invalid("media", at, error.to_string())
        })?;
        let root = layout.is_hashed().then(|| root_hash(layout.hash_unit(), &keys));
        let mut sequence = Self {
            tokens,
            hashes: Vec::new(),
            groups: vec![GroupTable::default(); layout.groups().len()],
            reserved: 0,
            computed: 0,
            encoder_tokens: 0,
            awaits_load: None,
            media: keys.media,
            lora: keys.lora,
            is_salted: keys.salt.is_some(),
            account: 0,
            retention: Retention::default(),
            root,
            layout: Arc::clone(layout),
        };
        sequence.extend_hashes();
        Ok(sequence)
    }

    /// States how many encoder tokens the sequence's encoder groups hold.
    #[must_use]
    pub fn with_encoder_tokens(mut self, num_tokens: usize) -> Self {
        self.encoder_tokens = num_tokens;
        self
    }

    /// The hashes after each hash unit of known tokens, in order; empty without prefix caching.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// Whether more than tokens and adapter decides the contents of the first `num_tokens` tokens.
    pub(crate) fn has_extra_keys(&self, num_tokens: usize) -> bool {
        self.is_salted || self.media.first().is_some_and(|item| item.offset < num_tokens)
    }

    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    pub(crate) fn append(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.extend_hashes();
    }

    fn extend_hashes(&mut self) {
        if let Some(root) = self.root {
            let unit = self.layout.hash_unit();
            extend_chain(&mut self.hashes, root, &self.tokens, unit, &self.media);
        }
    }

    /// The hash of the first `num_tokens` tokens, a multiple of the hash unit; none without prefix caching.
    pub(crate) fn hash_of(&self, num_tokens: usize) -> Option<BlockHash> {
        match num_tokens / self.layout.hash_unit() {
            0 => self.root,
            n => self.hashes.get(n - 1).copied(),
        }
    }

    /// Entries of a group's table for `reserved` tokens of the sequence.
    pub(crate) fn entries(&self, group: usize, reserved: usize) -> usize {
        if self.layout.groups()[group].holds_tokens() {
            self.layout.entries(group, reserved)
        } else if reserved > 0 {
            self.layout.entries(group, self.encoder_tokens)
        } else {
            0
        }
    }

    /// Whether the groups hold what is needed to go on after the first `n` tokens.
    fn can_go_on_from(&self, n: usize) -> bool {
        if n >= self.computed {
            return true;
        }
        let mut groups = self.layout.groups().iter().zip(&self.groups);
        groups.all(|(spec, table)| {
            let whole = spec.keeps != Keeps::State || n.is_multiple_of(spec.block_size);
            n == 0 || (whole && spec.first_needed(n) >= table.first)
        })
    }

    /// Lowers the room to `reserved` tokens, or to none where the groups cannot go on from there, and hands over the
    /// blocks beyond, deepest first.
    pub(crate) fn shrink(&mut self, reserved: usize) -> Vec<Dropped> {
        let wanted = self.reserved.min(reserved);
        self.reserved = if self.can_go_on_from(wanted) { wanted } else { 0 };
        self.computed = self.computed.min(self.reserved);
        self.awaits_load = self.awaits_load.filter(|_| self.reserved > 0);
        let mut dropped = Vec::new();
        for group in 0..self.groups.len() {
            let entries = self.entries(group, self.reserved);
            let spec = self.layout.groups()[group];
            let table = &mut self.groups[group];
            table.cut(entries, spec.block_size, &mut dropped);
            // A full block that loses its last tokens is no longer the block that its hash names.
            if spec.holds_tokens() {
                table.settled = table.settled.min(self.reserved / spec.block_size);
            }
        }
        if self.groups.len() > 1 {
            dropped.sort_by_key(|block| std::cmp::Reverse(block.depth));
        }
        dropped
    }

    /// Forgets the known tokens beyond the first `n`, and the media items that start there.
    pub(crate) fn forget(&mut self, n: usize) {
        self.tokens.truncate(n);
        self.hashes.truncate(n / self.layout.hash_unit());
        self.media.retain(|item| item.offset < n);
    }

    /// A copy that shares the blocks of the tokens known: their contents are the same for both, whoever writes
    /// them. Room for tokens in flight stays with the original.
    ///
    /// A state cannot be shared while a step may write to it: the copy then starts without room.
    pub(crate) fn fork(&self) -> Self {
        let mut child = self.clone();
        let in_flight = self.reserved > self.computed;
        let has_state = self
            .layout
            .groups()
            .iter()
            .any(|group| group.keeps == Keeps::State);
        let shared = if has_state && in_flight {
            0
        } else {
            self.tokens.len()
        };
        drop(child.shrink(shared));
        child
    }
}
