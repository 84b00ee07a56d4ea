//! Owns the byte-level alphabet: the printable character that stands for each byte in vocabulary files.

/// The character of a byte: printable Latin-1 stands for itself, the other bytes take U+0100 and on, in order.
pub(crate) fn char_of(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let place = (0..byte).filter(|&other| !is_printable(other)).count();
    char::from_u32(0x100 + place as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// Both directions of the alphabet as tables.
pub(crate) struct Alphabet {
    byte_of: [Option<u8>; 0x200],
    written_len: [u8; 256],
}

impl Alphabet {
    pub(crate) fn new() -> Self {
        let mut byte_of = [None; 0x200];
        let mut written_len = [0; 256];
        for byte in 0..=255_u8 {
            let written = char_of(byte);
            if let Some(slot) = byte_of.get_mut(written as usize) {
                *slot = Some(byte);
            }
            written_len[usize::from(byte)] = written.len_utf8() as u8;
        }
        Self { byte_of, written_len }
    }

    /// The bytes that a vocabulary entry stands for, or `None` where it has a character outside the alphabet.
    pub(crate) fn bytes_of(&self, token: &str) -> Option<Vec<u8>> {
        token
            .chars()
            .map(|written| self.byte_of.get(written as usize).copied().flatten())
            .collect()
    }

    /// Whether every character of a vocabulary entry stands for a byte.
    pub(crate) fn covers(&self, token: &str) -> bool {
        (token.chars()).all(|written| matches!(self.byte_of.get(written as usize), Some(Some(_))))
    }

    /// How many bytes the character of `byte` takes in a vocabulary file.
    pub(crate) fn written_len(&self, byte: u8) -> usize {
        usize::from(self.written_len[usize::from(byte)])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::{Alphabet, char_of};

    #[test]
    fn the_alphabet_is_the_library_s() {
        let ours: HashSet<char> = (0..=255).map(char_of).collect();
        let theirs: HashSet<char> = ByteLevel::alphabet().into_iter().collect();
        assert_eq!(ours, theirs);
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
    }

    #[test]
    fn a_token_turns_back_into_its_bytes() {
        let written: String = (0..=255).map(char_of).collect();
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(Alphabet::new().bytes_of(&written), Some(all));
        assert_eq!(Alphabet::new().bytes_of("\u{2581}a"), None);
    }
}
