//! Owns the packed form of a short piece: up to 15 bytes and their number in one integer, comparable in one step.

/// The longest piece that has a key.
pub(crate) const MAX_KEYED: usize = 15;

/// The bytes `text[start..end]` with their number in the top byte. At most `MAX_KEYED` bytes, at least one.
#[inline]
pub(crate) fn key_of(text: &[u8], start: usize, end: usize) -> u128 {
    let len = end - start;
    let low = match text
        .get(start..start + 16)
        .and_then(|bytes| <[u8; 16]>::try_from(bytes).ok())
    {
        Some(bytes) => u128::from_le_bytes(bytes) & ((1 << (8 * len)) - 1),
        None => tail_of(&text[start..end]),
    };
    low | (len as u128) << 120
}

fn tail_of(piece: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    bytes[..piece.len()].copy_from_slice(piece);
    u128::from_le_bytes(bytes)
}

/// A well-mixed 64-bit hash of a key: one wide multiplication, folded.
#[inline]
pub(crate) fn hash_of(key: u128) -> u64 {
    let (low, high) = (key as u64, (key >> 64) as u64);
    fold(low ^ 0x9e37_79b9_7f4a_7c15, high ^ 0xd6e8_feb8_6659_fd93)
}

/// The two halves of a product of 64-bit numbers, combined.
#[inline]
pub(crate) fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{hash_of, key_of};

    #[test]
    fn a_key_depends_on_the_piece_alone() {
        let text = b"abcdefghijklmnopqrstuvwxyz\0\0\0abc";
        let mut seen = HashSet::new();
        for start in 0..text.len() {
            for end in start + 1..=text.len().min(start + 15) {
                let alone = text[start..end].to_vec();
                assert_eq!(key_of(text, start, end), key_of(&alone, 0, alone.len()));
                seen.insert((key_of(text, start, end), alone));
            }
        }
        let keys: HashSet<u128> = seen.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys.len(), seen.len());
        let hashes: HashSet<u64> = keys.into_iter().map(hash_of).collect();
        assert_eq!(hashes.len(), seen.len());
    }
}
