//! Owns stop strings of one row: finds the first that completes, and holds back text that may belong to one.

use crate::error::{Error, Result};

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// A node of the Aho-Corasick automaton over the bytes of the stop strings.
#[derive(Debug)]
struct Node {
    edges: Vec<(u8, u32)>,
    fail: u32,
    depth: usize,
    /// The longest stop string that ends here.
    hit: u32,
}

impl Node {
    fn new(depth: usize) -> Self {
        Self {
            edges: Vec::new(),
            fail: ROOT,
            depth,
            hit: NONE,
        }
    }

    fn next(&self, byte: u8) -> Option<u32> {
        self.edges.iter().find(|edge| edge.0 == byte).map(|edge| edge.1)
    }
}

/// The bytes that begin a stop string, one bit a byte.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FirstBytes([u64; 4]);

impl FirstBytes {
    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte / 64)] >> (byte % 64) & 1 != 0
    }

    /// No stop string can begin in `text`.
    pub(crate) fn pass(&self, text: &str) -> bool {
        self.0 == [0; 4] || !text.bytes().any(|byte| self.has(byte))
    }
}

/// Watches the text of one row. Linear in the text, whatever the number of stop strings.
#[derive(Debug)]
pub(crate) struct StopStrings {
    nodes: Vec<Node>,
    starts: FirstBytes,
    lengths: Vec<usize>,
    include: bool,
    state: u32,
    held: String,
}

impl StopStrings {
    /// `None` where there is nothing to watch for. An empty stop string is an error.
    pub(crate) fn new(stops: &[String], include: bool) -> Result<Option<Self>> {
        if let Some(at) = stops.iter().position(String::is_empty) {
            return Err(Error::invalid(
                "stop",
                format!("the stop string at position {at} is empty"),
            ));
        }
        if stops.is_empty() {
            return Ok(None);
        }
        let mut matcher = Self {
            nodes: vec![Node::new(0)],
            starts: FirstBytes::default(),
            lengths: stops.iter().map(String::len).collect(),
            include,
            state: ROOT,
            held: String::new(),
        };
        for (index, stop) in stops.iter().enumerate() {
            matcher.starts.add(stop.as_bytes()[0]);
            matcher.insert(stop.as_bytes(), index as u32);
        }
        matcher.link();
        Ok(Some(matcher))
    }

    fn insert(&mut self, stop: &[u8], index: u32) {
        let mut at = ROOT;
        for &byte in stop {
            at = if let Some(child) = self.nodes[at as usize].next(byte) {
                child
            } else {
                let child = self.nodes.len() as u32;
                let depth = self.nodes[at as usize].depth + 1;
                self.nodes.push(Node::new(depth));
                self.nodes[at as usize].edges.push((byte, child));
                child
            };
        }
        let hit = &mut self.nodes[at as usize].hit;
        *hit = (*hit).min(index);
    }

    /// Breadth first: a node's failure link is known before its children are visited.
    fn link(&mut self) {
        let mut order: Vec<u32> = self.nodes[0].edges.iter().map(|edge| edge.1).collect();
        let mut done = 0;
        while done < order.len() {
            let parent = order[done];
            done += 1;
            let fallback = self.nodes[parent as usize].fail;
            if self.nodes[parent as usize].hit == NONE {
                self.nodes[parent as usize].hit = self.nodes[fallback as usize].hit;
            }
            for (byte, child) in self.nodes[parent as usize].edges.clone() {
                self.nodes[child as usize].fail = self.advance(fallback, byte);
                order.push(child);
            }
        }
    }

    fn advance(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            match self.nodes[at as usize].next(byte) {
                Some(next) => return next,
                None if at == ROOT => return ROOT,
                None => at = self.nodes[at as usize].fail,
            }
        }
    }

    /// Take new text; what may be shown goes to `out`. Returns the stop string that completed first, of several
    /// that complete at the same place the longest.
    pub(crate) fn feed(&mut self, text: &str, out: &mut String) -> Option<usize> {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            if self.state == ROOT {
                // Nothing is begun: on to the next byte that begins a stop string.
                at +=
                    (bytes[at..].iter().position(|&byte| self.starts.has(byte))).unwrap_or(bytes.len() - at);
                if at == bytes.len() {
                    break;
                }
            }
            self.state = self.advance(self.state, bytes[at]);
            at += 1;
            let hit = self.nodes[self.state as usize].hit;
            if hit != NONE {
                let end = self.held.len() + at;
                let cut = if self.include {
                    end
                } else {
                    end - self.lengths[hit as usize]
                };
                self.show(text, cut, out);
                self.held.clear();
                return Some(hit as usize);
            }
        }
        let shown = self.held.len() + text.len() - self.nodes[self.state as usize].depth;
        self.show(text, shown, out);
        None
    }

    /// Of what is held with `text` behind it, give out the first `shown` bytes and hold the rest.
    fn show(&mut self, text: &str, shown: usize, out: &mut String) {
        if let Some(of_text) = shown.checked_sub(self.held.len()) {
            out.push_str(&self.held);
            out.push_str(&text[..of_text]);
            self.held.clear();
            self.held.push_str(&text[of_text..]);
        } else {
            out.push_str(&self.held[..shown]);
            self.held.drain(..shown);
            self.held.push_str(text);
        }
    }

    /// No text follows: what was held back may be shown.
    pub(crate) fn release(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.state = ROOT;
    }

    /// The bytes to look for while nothing is begun; `None` while something is.
    pub(crate) fn idle(&self) -> Option<FirstBytes> {
        (self.state == ROOT).then_some(self.starts)
    }

    pub(crate) fn includes_stop(&self) -> bool {
        self.include
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(stops: &[String], include: bool) -> StopStrings {
        StopStrings::new(stops, include)
            .expect("valid stop strings")
            .expect("at least one")
    }

    /// What a scan of the whole text says: the cut text and the stop that completed first.
    fn reference(text: &str, stops: &[String], include: bool) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let longest = (0..stops.len())
                .filter(|&index| text.as_bytes()[..end].ends_with(stops[index].as_bytes()))
                .max_by_key(|&index| (stops[index].len(), usize::MAX - index));
            if let Some(index) = longest {
                let cut = if include { end } else { end - stops[index].len() };
                return (text[..cut].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn equals_a_scan_for_every_cut_of_the_text() {
        let stops: Vec<String> = ["two", "ne tw", "aab", "ab", "é!"].map(String::from).to_vec();
        for text in ["one two three", "aaab", "xé!", "aaaaa", "", "net two ne tw"] {
            for include in [false, true] {
                for mask in 0_u32..1 << text.chars().count().saturating_sub(1).min(10) {
                    let mut matcher = watch(&stops, include);
                    let (mut out, mut hit, mut chunk) = (String::new(), None, String::new());
                    for (at, character) in text.chars().enumerate() {
                        chunk.push(character);
                        if mask >> at.min(31) & 1 == 0 && hit.is_none() {
                            hit = matcher.feed(&chunk, &mut out);
                            chunk.clear();
                        }
                    }
                    if hit.is_none() {
                        hit = matcher.feed(&chunk, &mut out);
                    }
                    if hit.is_none() {
                        matcher.release(&mut out);
                    }
                    assert_eq!((out, hit), reference(text, &stops, include), "{text} {mask:b}");
                }
            }
        }
    }

    /// Small numbers from a seed, so that a failure can be repeated.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, sides: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % sides
        }

        fn text(&mut self, most: usize) -> String {
            let length = self.roll(most + 1);
            (0..length)
                .map(|_| ['a', 'b', 'é', 'è', '日', '🌶'][self.roll(6)])
                .collect()
        }
    }

    #[test]
    fn random_texts_and_stops_equal_a_scan_and_hold_the_least() {
        for seed in 0..20_000 {
            let mut dice = Dice(seed);
            let text = dice.text(14);
            let stops: Vec<String> = (0..=dice.roll(4)).map(|_| dice.text(3) + "a").collect();
            let include = dice.roll(2) == 0;
            let mut matcher = watch(&stops, include);
            let (mut out, mut hit, mut rest) = (String::new(), None, text.as_str());
            while hit.is_none() && !rest.is_empty() {
                let chars = 1 + dice.roll(4);
                let end = rest.char_indices().nth(chars).map_or(rest.len(), |(at, _)| at);
                hit = matcher.feed(&rest[..end], &mut out);
                rest = &rest[end..];
                let seen = &text[..text.len() - rest.len()];
                let held = stops
                    .iter()
                    .flat_map(|stop| (1..stop.len()).map(|size| &stop.as_bytes()[..size]));
                let most = held
                    .filter(|begun| seen.as_bytes().ends_with(begun))
                    .map(<[u8]>::len)
                    .max();
                assert!(
                    hit.is_some() || out.len() == seen.len() - most.unwrap_or(0),
                    "seed {seed}"
                );
            }
            if hit.is_none() {
                matcher.release(&mut out);
            }
            assert_eq!((out, hit), reference(&text, &stops, include), "seed {seed}");
        }
    }

    #[test]
    fn holds_back_no_more_than_a_possible_stop() {
        let mut matcher = watch(&["DEFG".to_owned()], false);
        let mut out = String::new();
        assert_eq!(matcher.feed("ABCDE", &mut out), None);
        assert_eq!(out, "ABC");
        assert_eq!(matcher.feed("X", &mut out), None);
        assert_eq!(out, "ABCDEX");
    }

    #[test]
    fn refuses_an_empty_stop_string() {
        assert!(StopStrings::new(&[String::new()], false).is_err());
    }
}
