//! Owns a token's place in the text.

/// Where a token comes from, in characters of the text, and the white space at its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// White-space characters that the token starts with.
    pub(crate) lead: usize,
    /// White-space characters that the token ends with.
    pub(crate) trail: usize,
}

impl Span {
    /// Of a token that stands for its own text.
    pub(crate) fn of_text(start: usize, end: usize, text: &str) -> Self {
        let space = |letter: &char| *letter == 'Ġ' || letter.is_whitespace();
        Self {
            start,
            end,
            lead: text.chars().take_while(space).count(),
            trail: text.chars().rev().take_while(space).count(),
        }
    }

    /// Of a token of the byte-level alphabet, where the space is the only white space.
    pub(crate) fn of_bytes(start: usize, end: usize, bytes: &[u8]) -> Self {
        let space = |byte: &&u8| **byte == b' ';
        Self {
            start,
            end,
            lead: bytes.iter().take_while(space).count(),
            trail: bytes.iter().rev().take_while(space).count(),
        }
    }
}
