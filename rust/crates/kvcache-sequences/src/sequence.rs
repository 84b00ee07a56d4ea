//! Owns one sequence: its known tokens, their block hashes, its block table and how far each of them reaches.

use kvcache_blocks::BlockId;
use kvcache_prefix::{BlockHash, ChainKeys, KeyError, Media, extend_chain, root_hash};

use crate::{CacheConfig, CacheError};

/// A sequence that is not in a cache yet, or no more.
///
/// Making one hashes its full blocks, which needs no cache: callers can do it outside their lock.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Tokens whose ids are known.
    pub(crate) tokens: Vec<u32>,
    /// Hashes of the full blocks of `tokens`; empty without prefix caching.
    pub(crate) hashes: Vec<BlockHash>,
    /// Blocks granted; always `reserved` tokens rounded up.
    pub(crate) table: Vec<BlockId>,
    /// Tokens that the table has room for, as granted.
    pub(crate) reserved: usize,
    /// Leading tokens whose contents are written.
    pub(crate) computed: usize,
    /// Leading blocks that are settled in the prefix index: published, or known under another block.
    pub(crate) settled: usize,
    media: Vec<Media>,
    root: Option<BlockHash>,
    block_size: usize,
}

impl Sequence {
    /// Makes a sequence of these known tokens, ready for [`KvCache::open`](crate::KvCache::open) of a cache with
    /// the same configuration.
    pub fn new(config: &CacheConfig, tokens: Vec<u32>, keys: ChainKeys) -> Result<Self, CacheError> {
        config.check_block_size()?;
        keys.validate(tokens.len()).map_err(|error| {
            let (KeyError::MediaOrder(at) | KeyError::EmptyDigest(at) | KeyError::MediaBeyondTokens(at)) =
                error;
            CacheError::invalid("media", at, error.to_string())
        })?;
        let mut sequence = Self {
            tokens,
            hashes: Vec::new(),
            table: Vec::new(),
            reserved: 0,
            computed: 0,
            settled: 0,
            root: config.prefix_caching.then(|| root_hash(config.block_size, &keys)),
            media: keys.media,
            block_size: config.block_size,
        };
        sequence.extend_hashes();
        Ok(sequence)
    }

    /// The hashes of the full blocks, in order; empty without prefix caching.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    pub(crate) fn append(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.extend_hashes();
    }

    fn extend_hashes(&mut self) {
        if let Some(root) = self.root {
            extend_chain(&mut self.hashes, root, &self.tokens, self.block_size, &self.media);
        }
    }

    /// Number of table entries for `reserved` tokens.
    pub(crate) fn blocks_for(&self, reserved: usize) -> usize {
        reserved.div_ceil(self.block_size)
    }

    /// Lowers the room to `reserved` tokens and returns the table entries beyond it, deepest first.
    pub(crate) fn shrink(&mut self, reserved: usize) -> impl Iterator<Item = BlockId> + use<> {
        self.reserved = self.reserved.min(reserved);
        self.computed = self.computed.min(self.reserved);
        self.settled = self.settled.min(self.reserved / self.block_size);
        self.table
            .split_off(self.blocks_for(self.reserved))
            .into_iter()
            .rev()
    }

    /// Forgets the known tokens beyond the first `n`, and the media items that start there.
    pub(crate) fn forget(&mut self, n: usize) {
        self.tokens.truncate(n);
        self.hashes.truncate(n / self.block_size);
        self.media.retain(|item| item.offset < n);
    }

    /// A copy that shares the blocks of the tokens known: their contents are the same for both, whoever writes
    /// them. Room for tokens in flight stays with the original.
    pub(crate) fn fork(&self) -> Self {
        let mut child = self.clone();
        drop(child.shrink(self.tokens.len()));
        child
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }

    pub(crate) fn is_hashed(&self) -> bool {
        self.root.is_some()
    }
}
