//! Owns what a KV group keeps: which blocks a sequence still needs, and how groups of different block sizes agree.

use kvcache_prefix::{BlockHash, BlockName};

use crate::{CacheError, Sequence};

/// Which of a sequence's blocks a group of layers needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Every token sees all before it (full attention, MLA latents): all blocks.
    All,
    /// A token sees itself and the `n - 1` before it: the blocks of the last `n - 1` computed tokens.
    Window(usize),
    /// A token sees the tokens of its own span of `n`: the blocks since the last multiple of `n`.
    Chunk(usize),
    /// A block holds the state after its last token (Mamba, linear attention): the newest block. Those of full
    /// blocks are checkpoints, from which others may go on.
    State,
    /// Tokens of an encoder, as many from the first step to the last, not found by their contents.
    Encoder,
}

/// One group: layers whose blocks are managed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSpec {
    /// Tokens that a block holds, or, for [`Keeps::State`], tokens from one checkpoint to the next.
    pub block_size: usize,
    /// Which blocks are needed.
    pub keeps: Keeps,
}

impl GroupSpec {
    /// A group that keeps all blocks.
    pub const fn full(block_size: usize) -> Self {
        Self {
            block_size,
            keeps: Keeps::All,
        }
    }

    /// The first block that a sequence with this many computed tokens needs to compute the next one.
    pub(crate) fn first_needed(&self, computed: usize) -> usize {
        let position = match self.keeps {
            Keeps::All | Keeps::Encoder => 0,
            Keeps::Window(window) => (computed + 1).saturating_sub(window),
            Keeps::Chunk(chunk) => computed / chunk * chunk,
            Keeps::State => computed.saturating_sub(1),
        };
        position / self.block_size
    }

    /// Whether its blocks hold tokens of the sequence, so that they grow with it and can be found again.
    pub(crate) fn holds_tokens(&self) -> bool {
        self.keeps != Keeps::Encoder
    }

    fn check(&self) -> Result<(), CacheError> {
        let in_range = |n: usize| (1..=i32::MAX as usize).contains(&n);
        if !in_range(self.block_size) {
            let reason = "must be 1 to 2^31 - 1";
            return Err(CacheError::invalid("block_size", self.block_size, reason));
        }
        match self.keeps {
            Keeps::Window(n) if !in_range(n) => {
                Err(CacheError::invalid("window", n, "must be 1 to 2^31 - 1"))
            }
            Keeps::Chunk(n) if !in_range(n) => {
                Err(CacheError::invalid("chunk_size", n, "must be 1 to 2^31 - 1"))
            }
            _ => Ok(()),
        }
    }
}

/// The groups of a cache and the two sizes that follow from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    groups: Vec<GroupSpec>,
    hash_unit: usize,
    alignment: usize,
    hashed: bool,
}

impl Layout {
    /// The most groups of a cache.
    pub const MAX_GROUPS: usize = 255;

    /// Checks the groups; `hashed` says whether sequences are to be found again by their tokens.
    pub fn new(groups: Vec<GroupSpec>, hashed: bool) -> Result<Self, CacheError> {
        if groups.len() > Self::MAX_GROUPS || !groups.iter().any(GroupSpec::holds_tokens) {
            let reason = "needs 1 to 255 groups, one at least that holds tokens of the sequence";
            return Err(CacheError::invalid("groups", groups.len(), reason));
        }
        groups.iter().try_for_each(GroupSpec::check)?;
        let sizes = || groups.iter().filter(|g| g.holds_tokens()).map(|g| g.block_size);
        let hash_unit = sizes().fold(0, gcd);
        let alignment = sizes().try_fold(1_usize, |lcm, size| lcm.checked_mul(size / gcd(lcm, size)));
        let Some(alignment) = alignment.filter(|lcm| i32::try_from(*lcm).is_ok()) else {
            let reason = "the least common multiple of the block sizes must be below 2^31";
            return Err(CacheError::invalid("groups", groups.len(), reason));
        };
        Ok(Self {
            groups,
            hash_unit,
            alignment,
            hashed,
        })
    }

    /// The groups.
    pub fn groups(&self) -> &[GroupSpec] {
        &self.groups
    }

    /// Tokens from one block hash to the next: the greatest common divisor of the block sizes.
    pub fn hash_unit(&self) -> usize {
        self.hash_unit
    }

    /// A hit is a multiple of this: the least common multiple of the block sizes.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// Whether sequences can be found again by their tokens.
    pub fn is_hashed(&self) -> bool {
        self.hashed
    }

    /// Whether all blocks of all groups are needed at all times, so that any prefix of a sequence can go on.
    pub(crate) fn keeps_all(&self) -> bool {
        let all = |group: &GroupSpec| matches!(group.keeps, Keeps::All | Keeps::Encoder);
        self.groups.iter().all(all)
    }

    /// The groups that hold tokens, with their numbers.
    pub(crate) fn token_groups(&self) -> impl Iterator<Item = (usize, &GroupSpec)> {
        self.groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.holds_tokens())
    }

    /// Table entries of a group for this many tokens.
    pub(crate) fn entries(&self, group: usize, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.groups[group].block_size)
    }

    /// The hash at the end of a group's block, which names all tokens up to there.
    pub(crate) fn hash_index(&self, group: usize, block: usize) -> usize {
        (block + 1) * (self.groups[group].block_size / self.hash_unit) - 1
    }

    /// The name of a full block of a sequence, where its tokens are known.
    pub(crate) fn name(&self, sequence: &Sequence, group: usize, block: usize) -> Option<BlockName> {
        let hash: &BlockHash = sequence.hashes.get(self.hash_index(group, block))?;
        Some(BlockName::new(*hash, group))
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
