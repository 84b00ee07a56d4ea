//! Owns the decoding of one row from the token table: pending bytes, byte runs, leading-space rules.

use crate::token_table::{Join, TokenTable};

const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Where the text of one row stands. Feeding ids and finishing gives the text of a whole decode, in parts.
#[derive(Debug, Clone)]
pub(crate) struct DecodeState {
    seen_token: bool,
    pending: Vec<u8>,
    strips_left: usize,
}

impl DecodeState {
    pub(crate) fn new(table: &TokenTable) -> Self {
        Self {
            seen_token: false,
            pending: Vec::new(),
            strips_left: table.strip().map_or(0, |(_, times)| times),
        }
    }

    /// Take one visible token; text that no later token can change is appended to `out`.
    pub(crate) fn push(&mut self, table: &TokenTable, id: u32, out: &mut String) {
        if !table.is_known(id) {
            return;
        }
        let piece = table.piece(id, !self.seen_token);
        self.seen_token = true;
        match table.join() {
            Join::ByteStream => self.push_stream(table, piece, out),
            Join::ByteRuns if table.is_byte(id) => self.pending.extend_from_slice(piece),
            _ => {
                self.end_run(table, out);
                self.emit(table, &String::from_utf8_lossy(piece), out);
            }
        }
    }

    /// The text ends here: give out what was pending.
    pub(crate) fn finish(&mut self, table: &TokenTable, out: &mut String) {
        if table.join() == Join::ByteStream {
            // What is pending is the start of one character, which a whole decode shows as one mark.
            if !self.pending.is_empty() {
                self.pending.clear();
                self.emit(table, "\u{FFFD}", out);
            }
        } else {
            self.end_run(table, out);
        }
    }

    fn push_stream(&mut self, table: &TokenTable, piece: &[u8], out: &mut String) {
        if self.pending.is_empty()
            && let Ok(text) = std::str::from_utf8(piece)
        {
            self.emit(table, text, out);
            return;
        }
        let mut bytes = std::mem::take(&mut self.pending);
        bytes.extend_from_slice(piece);
        let mut text = String::with_capacity(bytes.len());
        let mut rest: &[u8] = &bytes;
        while let Err(error) = std::str::from_utf8(rest) {
            let (valid, broken) = rest.split_at(error.valid_up_to());
            text.push_str(&String::from_utf8_lossy(valid));
            let Some(length) = error.error_len() else {
                self.pending = broken.to_vec();
                rest = b"";
                break;
            };
            text.push(REPLACEMENT);
            rest = &broken[length..];
        }
        text.push_str(&String::from_utf8_lossy(rest));
        self.emit(table, &text, out);
    }

    /// A run of byte tokens is judged as a whole, as the library does.
    fn end_run(&mut self, table: &TokenTable, out: &mut String) {
        if self.pending.is_empty() {
            return;
        }
        let run = std::mem::take(&mut self.pending);
        let length = run.len();
        let text = String::from_utf8(run).unwrap_or_else(|_| REPLACEMENT.to_string().repeat(length));
        self.emit(table, &text, out);
    }

    fn emit(&mut self, table: &TokenTable, mut text: &str, out: &mut String) {
        while self.strips_left > 0 && !text.is_empty() {
            let content = table.strip().map_or(' ', |(content, _)| content);
            match text.strip_prefix(content) {
                Some(after) => {
                    text = after;
                    self.strips_left -= 1;
                }
                None => self.strips_left = 0,
            }
        }
        out.push_str(text);
    }
}
