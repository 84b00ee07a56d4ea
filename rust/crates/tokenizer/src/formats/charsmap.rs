//! Owns look-ups in a compiled character map of `SentencePiece`. Knows nothing of how maps are applied.

/// What the map makes of exactly `text`, or `None` where it leaves it alone.
pub(super) fn lookup<'a>(charsmap: &'a [u8], text: &[u8]) -> Option<&'a str> {
    let (size, rest) = charsmap.split_first_chunk::<4>()?;
    let (trie, normalized) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
    let unit = |at: usize| {
        let bytes = trie.get(at * 4..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let offset = |unit: u32| (unit >> 10) << ((unit & 0x200) >> 6);
    // A double array: the children of a node lie at its offset, exclusive-or the byte.
    let mut at = 0_usize;
    let mut node = unit(0)?;
    at ^= offset(node) as usize;
    for &byte in text {
        at ^= usize::from(byte);
        node = unit(at)?;
        if node & 0x8000_00ff != u32::from(byte) {
            return None;
        }
        at ^= offset(node) as usize;
    }
    if node >> 8 & 1 == 0 {
        return None;
    }
    let start = (unit(at)? & 0x7fff_ffff) as usize;
    let tail = normalized.get(start..)?;
    let end = tail.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&tail[..end]).ok()
}
