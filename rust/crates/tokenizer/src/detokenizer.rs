//! Owns the rows of a batch while their tokens become text. Knows nothing of requests, models or Python.

use std::sync::Arc;

use crate::decode_state::DecodeState;
use crate::decode_whole::DecodeWhole;
use crate::decoder_chain::Join;
use crate::error::{Error, Result};
use crate::stop_strings::{FirstBytes, StopLibrary, StopStrings};
use crate::text_tokenizer::TextTokenizer;

const NO_TOKEN: u32 = u32::MAX;

/// How a row's text is to be made.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Tokens before the first output token; they decide leading spaces and unfinished characters.
    pub prompt_ids: Vec<u32>,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Strings that end the text.
    pub stop: Vec<String>,
    /// Keep the stop string in the text.
    pub include_stop_str_in_output: bool,
}

/// What a step gave each of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepText {
    /// The texts of all rows, one behind the other.
    text: String,
    /// Where each row's text ends in `text`.
    ends: Vec<usize>,
    /// The token whose text is the row's text, or [`NO_TOKEN`].
    tokens: Vec<u32>,
    /// The stop string that ended the row in this step, or -1.
    pub stops: Vec<i32>,
}

impl StepText {
    fn with_capacity(rows: usize, ids: usize) -> Self {
        Self {
            text: String::with_capacity(ids * 8),
            ends: Vec::with_capacity(rows),
            tokens: Vec::with_capacity(rows),
            stops: Vec::with_capacity(rows),
        }
    }

    /// Text that may be shown now, by row; with it the token that the row got, where that is its text.
    pub fn texts(&self) -> impl ExactSizeIterator<Item = (&str, Option<u32>)> {
        (0..self.ends.len()).map(|row| {
            let start = if row == 0 { 0 } else { self.ends[row - 1] };
            let token = Some(self.tokens[row]).filter(|&token| token != NO_TOKEN);
            (&self.text[start..self.ends[row]], token)
        })
    }
}

#[derive(Debug, Clone)]
enum RowDecoder {
    Table(DecodeState),
    Whole(DecodeWhole),
}

#[derive(Debug)]
struct Row {
    decoder: RowDecoder,
    skip_special_tokens: bool,
    /// Text of the prompt's unfinished end; dropped from the output where the output begins with it.
    shown_by_prompt: String,
    stops: Option<StopStrings>,
    special_stops: Vec<(u32, usize)>,
    stop_texts: Vec<String>,
    stopped: bool,
}

/// The part of a row that most steps are done with.
#[derive(Debug, Clone, Copy, Default)]
struct Brief {
    /// Where a stop string may begin, as long as the row holds nothing.
    starts: FirstBytes,
    is_open: bool,
    /// The next token's text is the next text of the row.
    copies: bool,
}

/// Turns the tokens of many rows into text, one call a step.
pub struct Detokenizer {
    tokenizer: Arc<TextTokenizer>,
    rows: Vec<Option<Row>>,
    /// By slot, close together in memory: what a step needs of a row that only copies tokens' texts.
    brief: Vec<Brief>,
    stops: StopLibrary,
    free: Vec<usize>,
}

impl Detokenizer {
    /// A detokenizer without rows.
    pub fn new(tokenizer: Arc<TextTokenizer>) -> Self {
        Self {
            tokenizer,
            rows: Vec::new(),
            brief: Vec::new(),
            stops: StopLibrary::default(),
            free: Vec::new(),
        }
    }

    /// Open a row; returns its slot, which is free again after [`Self::finish`] or [`Self::close`].
    pub fn open(&mut self, options: &OpenOptions) -> Result<usize> {
        let stops = self
            .stops
            .watch(&options.stop, options.include_stop_str_in_output)?;
        let row = Row::new(&self.tokenizer, options, stops)?;
        let slot = self.free.pop().unwrap_or(self.rows.len());
        let brief = row.brief();
        if slot == self.rows.len() {
            self.rows.push(Some(row));
            self.brief.push(brief);
        } else {
            self.rows[slot] = Some(row);
            self.brief[slot] = brief;
        }
        Ok(slot)
    }

    /// Feed each row its new tokens: row `i` gets `ids[offsets[i]..offsets[i + 1]]`, or `ids[i]` without offsets.
    ///
    /// All arguments are checked before any row changes. Rows are taken in order.
    pub fn step(&mut self, slots: &[i32], ids: &[i32], offsets: Option<&[i32]>) -> Result<StepText> {
        self.check_step(slots, ids, offsets)?;
        let tokenizer = Arc::clone(&self.tokenizer);
        let mut result = StepText::with_capacity(slots.len(), ids.len());
        for (at, &slot) in slots.iter().enumerate() {
            let (start, ids) = (result.text.len(), &ids[range(offsets, at)]);
            let mut stop = None;
            for &id in ids {
                stop = self.push(&tokenizer, slot as usize, id as u32, &mut result.text)?;
                if stop.is_some() {
                    break;
                }
            }
            let shown = &result.text[start..];
            result.tokens.push(match ids {
                &[id] if tokenizer.table().text(id as u32, false) == Some(shown) => id as u32,
                _ => NO_TOKEN,
            });
            result.ends.push(result.text.len());
            result.stops.push(stop.map_or(-1, |index| index as i32));
        }
        Ok(result)
    }

    fn push(
        &mut self,
        tokenizer: &TextTokenizer,
        slot: usize,
        id: u32,
        out: &mut String,
    ) -> Result<Option<usize>> {
        let brief = &mut self.brief[slot];
        if brief.copies
            && let Some(text) = tokenizer.table().plain_text(id)
            && brief.starts.pass(text)
        {
            out.push_str(text);
            return Ok(None);
        }
        let Some(row) = &mut self.rows[slot] else {
            return Ok(None);
        };
        let stop = row.push(tokenizer, id, out);
        *brief = row.brief();
        stop
    }

    fn check_step(&self, slots: &[i32], ids: &[i32], offsets: Option<&[i32]>) -> Result<()> {
        self.check_ids(ids)?;
        check_offsets(slots.len(), ids.len(), offsets)?;
        for (at, &slot) in slots.iter().enumerate() {
            let index = usize::try_from(slot).ok();
            if !index.is_some_and(|index| self.brief.get(index).is_some_and(|brief| brief.is_open)) {
                return Err(Error::invalid(
                    "slots",
                    format!("the slot {slot} at position {at} is not open"),
                ));
            }
            if self.tokenizer.table().any_fails()
                && let Some(row) = &self.rows[slot as usize]
            {
                let ids = &ids[range(offsets, at)];
                row.check_decodable(&self.tokenizer, "ids", ids.iter().map(|&id| id as u32))?;
            }
        }
        Ok(())
    }

    /// The row's text is complete: what was held back, cut at a stop string that it completes. Closes the slot.
    pub fn finish(&mut self, slot: i64) -> Result<String> {
        let index = self.open_slot(slot)?;
        let mut text = String::new();
        if let Some(row) = &mut self.rows[index] {
            row.finish(&self.tokenizer, &mut text)?;
        }
        self.release(index);
        Ok(text)
    }

    /// Drop the row and whatever it held.
    pub fn close(&mut self, slot: i64) -> Result<()> {
        let index = self.open_slot(slot)?;
        self.release(index);
        Ok(())
    }

    /// Rows open now.
    pub fn num_open(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    fn release(&mut self, index: usize) {
        self.rows[index] = None;
        self.brief[index] = Brief::default();
        self.free.push(index);
    }

    fn open_slot(&self, slot: i64) -> Result<usize> {
        usize::try_from(slot)
            .ok()
            .filter(|&index| self.rows.get(index).is_some_and(Option::is_some))
            .ok_or_else(|| Error::invalid("slot", format!("the slot {slot} is not open")))
    }

    fn check_ids(&self, ids: &[i32]) -> Result<()> {
        let limit = self.tokenizer.vocab_size();
        let Some(at) = ids.iter().position(|&id| id as u32 >= limit) else {
            return Ok(());
        };
        let (id, reason) = match ids[at] {
            id if id < 0 => (id, "is negative".to_owned()),
            id => (id, format!("is outside the vocabulary of {limit} tokens")),
        };
        Err(Error::invalid(
            "ids",
            format!("the token id {id} at position {at} {reason}"),
        ))
    }
}

fn check_offsets(rows: usize, ids: usize, offsets: Option<&[i32]>) -> Result<()> {
    let Some(offsets) = offsets else {
        return if ids == rows {
            Ok(())
        } else {
            Err(Error::invalid(
                "ids",
                format!("{ids} ids for {rows} slots; give offsets where a row has not one id"),
            ))
        };
    };
    let ascending = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
    let first = offsets.first().copied();
    let last = offsets
        .last()
        .copied()
        .and_then(|last| usize::try_from(last).ok());
    if offsets.len() != rows + 1 || first != Some(0) || last != Some(ids) || !ascending {
        return Err(Error::invalid(
            "offsets",
            format!("must be {} ascending numbers from 0 to {ids}", rows + 1),
        ));
    }
    Ok(())
}

/// The ids of row `at`, by offsets that were checked.
fn range(offsets: Option<&[i32]>, at: usize) -> std::ops::Range<usize> {
    match offsets {
        None => at..at + 1,
        Some(offsets) => offsets[at] as usize..offsets[at + 1] as usize,
    }
}

impl Row {
    fn new(tokenizer: &TextTokenizer, options: &OpenOptions, stops: Option<StopStrings>) -> Result<Self> {
        tokenizer.check_ids("prompt_ids", &options.prompt_ids)?;
        let (decoder, shown_by_prompt) = after_prompt(tokenizer, options);
        let mut row = Self {
            decoder,
            skip_special_tokens: options.skip_special_tokens,
            shown_by_prompt,
            stops,
            special_stops: Vec::new(),
            stop_texts: options.stop.clone(),
            stopped: false,
        };
        row.check_decodable(tokenizer, "prompt_ids", options.prompt_ids.iter().copied())?;
        for (index, stop) in options.stop.iter().enumerate() {
            if let Some(id) = tokenizer.token_to_id(stop).filter(|&id| row.skips(tokenizer, id)) {
                row.special_stops.push((id, index));
            }
        }
        Ok(row)
    }

    fn brief(&self) -> Brief {
        let idle = match &self.decoder {
            RowDecoder::Table(state) => state.is_idle() && self.shown_by_prompt.is_empty() && !self.stopped,
            RowDecoder::Whole(_) => false,
        };
        let starts = self
            .stops
            .as_ref()
            .map_or(Some(FirstBytes::default()), StopStrings::idle);
        Brief {
            starts: starts.unwrap_or_default(),
            is_open: true,
            copies: idle && starts.is_some(),
        }
    }

    /// Refuse tokens at which the library's decode would fail.
    fn check_decodable(
        &self,
        tokenizer: &TextTokenizer,
        field: &'static str,
        mut ids: impl Iterator<Item = u32>,
    ) -> Result<()> {
        match ids.find(|&id| tokenizer.table().fails(id) && !self.skips(tokenizer, id)) {
            None => Ok(()),
            Some(id) => Err(Error::invalid(
                field,
                format!("the tokenizer's decoder fails on the token {id}"),
            )),
        }
    }

    fn skips(&self, tokenizer: &TextTokenizer, id: u32) -> bool {
        self.skip_special_tokens && tokenizer.table().is_special(id)
    }

    fn push(&mut self, tokenizer: &TextTokenizer, id: u32, out: &mut String) -> Result<Option<usize>> {
        if self.stopped {
            return Ok(None);
        }
        if self.skips(tokenizer, id) {
            let special = self
                .special_stops
                .iter()
                .find(|stop| stop.0 == id)
                .map(|stop| stop.1);
            return match special {
                Some(index) => self.stop_at_special(tokenizer, index, out),
                None => Ok(None),
            };
        }
        let table = tokenizer.table();
        match &mut self.decoder {
            RowDecoder::Table(state) => {
                if state.is_idle()
                    && let Some(text) = table.plain_text(id)
                {
                    return Ok(self.show(text, out));
                }
                if self.stops.is_none() && self.shown_by_prompt.is_empty() {
                    state.push(table, id, out);
                    return Ok(None);
                }
                let mut chunk = String::new();
                state.push(table, id, &mut chunk);
                Ok(self.show(&chunk, out))
            }
            RowDecoder::Whole(whole) => {
                whole.push(id);
                Ok(None)
            }
        }
    }

    /// A skipped special token that is itself a stop string: it ends the text although it is not in the text.
    fn stop_at_special(
        &mut self,
        tokenizer: &TextTokenizer,
        index: usize,
        out: &mut String,
    ) -> Result<Option<usize>> {
        if let Some(earlier) = self.finish(tokenizer, out)? {
            return Ok(Some(earlier));
        }
        if self.stops.as_ref().is_some_and(StopStrings::includes_stop) {
            out.push_str(&self.stop_texts[index]);
        }
        Ok(Some(index))
    }

    /// Give out everything that is held. Returns a stop string that the pending text completes.
    fn finish(&mut self, tokenizer: &TextTokenizer, out: &mut String) -> Result<Option<usize>> {
        if self.stopped {
            return Ok(None);
        }
        let mut chunk = String::new();
        match &mut self.decoder {
            RowDecoder::Table(state) => state.finish(tokenizer.table(), &mut chunk),
            RowDecoder::Whole(whole) => whole.finish(tokenizer, &mut chunk)?,
        }
        let stop = self.show(&chunk, out);
        if let (None, Some(stops)) = (stop, &mut self.stops) {
            stops.release(out);
        }
        self.stopped = true;
        Ok(stop)
    }

    fn show(&mut self, chunk: &str, out: &mut String) -> Option<usize> {
        let text = self.without_prompt_end(chunk);
        let stop = if let Some(stops) = &mut self.stops {
            stops.feed(text, out)
        } else {
            out.push_str(text);
            None
        };
        self.stopped |= stop.is_some();
        stop
    }

    /// `chunk` without what the prompt's text already showed, as far as they agree.
    fn without_prompt_end<'a>(&mut self, mut chunk: &'a str) -> &'a str {
        while let (Some(shown), Some(next)) = (self.shown_by_prompt.chars().next(), chunk.chars().next()) {
            if shown != next {
                self.shown_by_prompt.clear();
                break;
            }
            self.shown_by_prompt.drain(..shown.len_utf8());
            chunk = &chunk[next.len_utf8()..];
        }
        chunk
    }
}

/// The decoder behind the prompt, and the text of the prompt's end that it still holds as pending.
fn after_prompt(tokenizer: &TextTokenizer, options: &OpenOptions) -> (RowDecoder, String) {
    let table = tokenizer.table();
    let visible = options
        .prompt_ids
        .iter()
        .copied()
        .filter(|&id| !(options.skip_special_tokens && table.is_special(id)));
    if table.join() == Join::Whole {
        return (
            RowDecoder::Whole(DecodeWhole::after_prompt(visible.collect())),
            String::new(),
        );
    }
    let mut state = DecodeState::new(table);
    let mut prompt_text = String::new();
    for id in visible {
        state.push(table, id, &mut prompt_text);
        prompt_text.clear();
    }
    let mut shown = String::new();
    state.clone().finish(table, &mut shown);
    (RowDecoder::Table(state), shown)
}
