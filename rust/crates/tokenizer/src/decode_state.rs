//! Owns the decoding of one row from the token table: unfinished characters, byte runs, what the ends decide.

use crate::decoder_chain::Join;
use crate::text_stage::TextStageState;
use crate::token_table::TokenTable;

const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;
const NO_KEY: u32 = u32::MAX;

/// Where the text of one row stands. Feeding ids and finishing gives the text of a whole decode, in parts.
#[derive(Debug, Clone)]
pub(crate) struct DecodeState {
    seen_token: bool,
    /// Bytes of an unfinished character, or of a run of byte tokens.
    pending: Vec<u8>,
    /// The run in `pending` is the start of the text.
    run_at_start: bool,
    /// The last token, and whether it is the first, where the text's end decides about a part of it.
    open_end: Option<(u32, bool)>,
    repeat_key: u32,
    /// Of each stage on joined text; empty once none of them can change the text any more.
    stages: Vec<TextStageState>,
}

impl DecodeState {
    pub(crate) fn new(table: &TokenTable) -> Self {
        Self {
            seen_token: false,
            pending: Vec::new(),
            run_at_start: false,
            open_end: None,
            repeat_key: NO_KEY,
            stages: vec![TextStageState::default(); table.chain().text_stages().len()],
        }
    }

    /// Inside a text, with nothing pending: the next token's text does not depend on those before.
    pub(crate) fn is_idle(&self) -> bool {
        self.seen_token && self.pending.is_empty() && self.stages.is_empty()
    }

    /// Take one visible token; text that no later token can change is appended to `out`.
    pub(crate) fn push(&mut self, table: &TokenTable, id: u32, out: &mut String) {
        if !table.is_known(id) || self.repeats(table, id) || table.is_dropped(id) {
            return;
        }
        let at_start = !self.seen_token;
        self.seen_token = true;
        match table.join() {
            Join::ByteStream => self.push_stream(table, table.piece(id, at_start), out),
            Join::ByteRuns if table.is_byte(id, at_start) => {
                self.run_at_start |= at_start;
                self.pending.extend_from_slice(table.piece(id, at_start));
            }
            _ => {
                self.end_run(table, out);
                self.close_end(table, out);
                let text = table.text(id, at_start).unwrap_or_default();
                let shown = table
                    .last_text(id, at_start)
                    .map_or(text.len(), |last| common_start(text, last));
                if table.last_text(id, at_start).is_some() {
                    self.open_end = Some((id, at_start));
                }
                self.emit(table, &text[..shown], out);
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
            if let Some((id, at_start)) = self.open_end.take() {
                let text = table.text(id, at_start).unwrap_or_default();
                let last = table.last_text(id, at_start).unwrap_or_default();
                self.emit(table, &last[common_start(text, last)..], out);
            }
        }
        self.finish_stages(table, out);
    }

    fn repeats(&mut self, table: &TokenTable, id: u32) -> bool {
        let Some(key) = table.repeat_key(id) else {
            return false;
        };
        std::mem::replace(&mut self.repeat_key, key) == key
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

    fn end_run(&mut self, table: &TokenTable, out: &mut String) {
        if self.pending.is_empty() {
            return;
        }
        let run = std::mem::take(&mut self.pending);
        let at_start = std::mem::take(&mut self.run_at_start);
        let text = table.chain().run_text(run, at_start);
        self.emit(table, &text, out);
    }

    /// A token follows the last one: show the part of that one which the end would have decided.
    fn close_end(&mut self, table: &TokenTable, out: &mut String) {
        if let Some((id, at_start)) = self.open_end.take() {
            let text = table.text(id, at_start).unwrap_or_default();
            let last = table.last_text(id, at_start).unwrap_or_default();
            self.emit(table, &text[common_start(text, last)..], out);
        }
    }

    fn emit(&mut self, table: &TokenTable, text: &str, out: &mut String) {
        self.emit_from(table, 0, text, out);
        let mut stages = table.chain().text_stages().iter().zip(&self.stages);
        if stages.all(|(stage, state)| stage.is_done(state)) {
            self.stages.clear();
        }
    }

    /// Send text through the stages from `at` on; without their states they all have nothing left to do.
    fn emit_from(&mut self, table: &TokenTable, at: usize, text: &str, out: &mut String) {
        let Some(state) = self.stages.get_mut(at) else {
            out.push_str(text);
            return;
        };
        let stages = table.chain().text_stages();
        if at + 1 == stages.len() {
            stages[at].push(state, text, out);
        } else {
            let mut through = String::new();
            stages[at].push(state, text, &mut through);
            self.emit_from(table, at + 1, &through, out);
        }
    }

    fn finish_stages(&mut self, table: &TokenTable, out: &mut String) {
        for at in 0..self.stages.len() {
            let mut rest = String::new();
            table.chain().text_stages()[at].finish(&mut self.stages[at], &mut rest);
            self.emit_from(table, at + 1, &rest, out);
        }
    }
}

/// Bytes of the longest common start.
pub(crate) fn common_start(left: &str, right: &str) -> usize {
    left.chars()
        .zip(right.chars())
        .take_while(|(left, right)| left == right)
        .map(|(left, _)| left.len_utf8())
        .sum()
}
