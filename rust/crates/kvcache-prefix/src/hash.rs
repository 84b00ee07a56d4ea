//! Owns the block hash: its byte layout (version 2) and the chain over a sequence's full blocks.
//!
//! The layout is a public format: a router that computes the same hashes knows what an engine has cached.
//! All integers are unsigned, 32 bits, little endian. `BLAKE3-128` is the first 16 bytes of BLAKE3's output.
//!
//! ```text
//! root          = BLAKE3-128("llm-kvcache/root" · version (2) · block_size · extra(1, salt)? · extra(2, lora)?)
//! hash[i]       = BLAKE3-128 keyed by (parent · "llm-kvcache/node") of (token[0] … token[block_size - 1] · media*)
//! parent        = hash[i - 1], or root for the first block; 16 bytes, so that the key has 32
//! media         = extra(3, offset within the block · digest), one for each item that starts in the block,
//!                 by ascending offset
//! extra(tag, x) = tag (one byte) · length of x in bytes · x
//! ```
//!
//! `salt` is bytes, `lora` is UTF-8; each is left out where the sequence has none. Items that start in a block
//! change its hash and so, through the chain, that of every later block. The parent travels as the key because the
//! 64 bytes of 16 tokens then are one compression of BLAKE3, where parent and tokens in one message would be two.
//!
//! A partial block, where a cache keeps one, is named by the same rule over the tokens it has: fewer bytes, another name.

/// Version of the byte layout; part of every root, so hashes of different versions never meet.
pub const HASH_VERSION: u32 = 2;

const ROOT_DOMAIN: &[u8; 16] = b"llm-kvcache/root";
const NODE_DOMAIN: &[u8; 16] = b"llm-kvcache/node";
const TAG_SALT: u8 = 1;
const TAG_LORA: u8 = 2;
const TAG_MEDIA: u8 = 3;

/// The 128-bit name of a full block: its tokens, everything before it, and the extra keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash([u8; 16]);

impl BlockHash {
    /// The hash as it is written in the format.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The hash as a number, for use as a key.
    pub const fn to_u128(self) -> u128 {
        u128::from_le_bytes(self.0)
    }

    /// The hash that has these bytes in the format.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    fn first_half(hash: &blake3::Hash) -> Self {
        let mut first = [0; 16];
        first.copy_from_slice(&hash.as_bytes()[..16]);
        Self(first)
    }
}

/// A media item (an image, a sound) whose placeholder tokens start at `offset`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Media {
    /// Position of the first placeholder token in the sequence.
    pub offset: usize,
    /// Digest of the contents; must cover everything that changes what the model sees, shape included.
    pub digest: Vec<u8>,
}

/// What besides tokens decides the contents of a sequence's blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainKeys {
    /// Separates caches of users who must not see each other's hits.
    pub salt: Option<Vec<u8>>,
    /// Content version of the adapter.
    pub lora: Option<String>,
    /// Media items by strictly ascending offset.
    pub media: Vec<Media>,
}

/// Extra keys that have no hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Two items start at this offset, or they are not sorted.
    #[error("media offsets must be ascending and distinct (offset {0})")]
    MediaOrder(usize),
    /// The item at this offset has no digest.
    #[error("the media item at offset {0} has an empty digest")]
    EmptyDigest(usize),
    /// The item starts after the last token.
    #[error("the media item at offset {0} starts beyond the tokens")]
    MediaBeyondTokens(usize),
}

impl ChainKeys {
    /// Checks the media items against a sequence of `num_tokens` tokens.
    pub fn validate(&self, num_tokens: usize) -> Result<(), KeyError> {
        for (i, item) in self.media.iter().enumerate() {
            if i > 0 && self.media[i - 1].offset >= item.offset {
                return Err(KeyError::MediaOrder(item.offset));
            }
            if item.digest.is_empty() {
                return Err(KeyError::EmptyDigest(item.offset));
            }
            if item.offset >= num_tokens {
                return Err(KeyError::MediaBeyondTokens(item.offset));
            }
        }
        Ok(())
    }
}

fn write_extra(hasher: &mut blake3::Hasher, tag: u8, parts: [&[u8]; 2]) {
    let length = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    hasher.update(&[tag]).update(&length.to_le_bytes());
    for part in parts {
        hasher.update(part);
    }
}

/// The parent of a sequence's first block.
pub fn root_hash(block_size: usize, keys: &ChainKeys) -> BlockHash {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(ROOT_DOMAIN)
        .update(&HASH_VERSION.to_le_bytes())
        .update(&(block_size as u32).to_le_bytes());
    if let Some(salt) = &keys.salt {
        write_extra(&mut hasher, TAG_SALT, [salt, &[]]);
    }
    if let Some(lora) = &keys.lora {
        write_extra(&mut hasher, TAG_LORA, [lora.as_bytes(), &[]]);
    }
    BlockHash::first_half(&hasher.finalize())
}

/// Tokens of a block that are hashed without leaving the stack.
const INLINE_TOKENS: usize = 128;

fn node_key(parent: BlockHash) -> [u8; 32] {
    let mut key = [0; 32];
    key[..16].copy_from_slice(&parent.0);
    key[16..].copy_from_slice(NODE_DOMAIN);
    key
}

/// The media items that start in `start..end`.
fn media_within(media: &[Media], start: usize, end: usize) -> &[Media] {
    let first = media.partition_point(|item| item.offset < start);
    let last = media.partition_point(|item| item.offset < end);
    &media[first..last]
}

/// The hash of the block that starts at position `start`; `media` may hold items of other blocks too.
pub fn next_hash(parent: BlockHash, tokens: &[u32], start: usize, media: &[Media]) -> BlockHash {
    let media = media_within(media, start, start + tokens.len());
    let key = node_key(parent);
    if media.is_empty() && tokens.len() <= INLINE_TOKENS {
        let mut message = [0; 4 * INLINE_TOKENS];
        for (bytes, token) in message.chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        return BlockHash::first_half(&blake3::keyed_hash(&key, &message[..4 * tokens.len()]));
    }
    let mut hasher = blake3::Hasher::new_keyed(&key);
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    for item in media {
        let offset = ((item.offset - start) as u32).to_le_bytes();
        write_extra(&mut hasher, TAG_MEDIA, [&offset, &item.digest]);
    }
    BlockHash::first_half(&hasher.finalize())
}

/// Appends the hashes of the full blocks of `tokens` that `hashes` does not have yet.
pub fn extend_chain(
    hashes: &mut Vec<BlockHash>,
    root: BlockHash,
    tokens: &[u32],
    block_size: usize,
    media: &[Media],
) {
    let full = tokens.len() / block_size;
    for i in hashes.len()..full {
        let parent = hashes.last().copied().unwrap_or(root);
        let start = i * block_size;
        hashes.push(next_hash(
            parent,
            &tokens[start..start + block_size],
            start,
            media,
        ));
    }
}
