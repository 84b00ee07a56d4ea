//! Owns stop strings of one row: finds the first that completes, and holds back text that may belong to one.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// A node of the Aho-Corasick automaton over the bytes of the stop strings.
#[derive(Debug)]
struct Node {
    /// Where the node's edges start in [`Automaton::edges`]; they end where those of the next node start.
    first_edge: u32,
    fail: u32,
    /// Bytes from the root to here.
    depth: u32,
    /// The longest stop string that ends here.
    hit: u32,
}

/// What a list of stop strings has in common for all rows that watch for it.
#[derive(Debug)]
struct Automaton {
    nodes: Vec<Node>,
    edges: Vec<(u8, u32)>,
    lengths: Vec<usize>,
    starts: FirstBytes,
}

impl Automaton {
    fn new(stops: &[String]) -> Self {
        let mut trie = Trie::default();
        let mut starts = FirstBytes::default();
        for (index, stop) in stops.iter().enumerate() {
            starts.add(stop.as_bytes()[0]);
            trie.insert(stop.as_bytes(), index as u32);
        }
        let mut automaton = Self {
            nodes: Vec::with_capacity(trie.children.len() + 1),
            edges: Vec::with_capacity(trie.children.len()),
            lengths: stops.iter().map(String::len).collect(),
            starts,
        };
        for (children, &(depth, hit)) in trie.children.iter().zip(&trie.ends) {
            automaton.push_node(depth, hit);
            automaton.edges.extend(children);
        }
        automaton.push_node(0, NONE); // only its first edge counts: the end of the last node's
        automaton.link();
        automaton
    }

    fn push_node(&mut self, depth: u32, hit: u32) {
        self.nodes.push(Node {
            first_edge: self.edges.len() as u32,
            fail: ROOT,
            depth,
            hit,
        });
    }

    fn edges(&self, node: u32) -> &[(u8, u32)] {
        let at = node as usize;
        &self.edges[self.nodes[at].first_edge as usize..self.nodes[at + 1].first_edge as usize]
    }

    /// Breadth first: a node's failure link is known before its children are visited.
    fn link(&mut self) {
        let mut order: Vec<u32> = self.edges(ROOT).iter().map(|edge| edge.1).collect();
        let mut done = 0;
        while done < order.len() {
            let parent = order[done];
            done += 1;
            let fallback = self.nodes[parent as usize].fail;
            if self.nodes[parent as usize].hit == NONE {
                self.nodes[parent as usize].hit = self.nodes[fallback as usize].hit;
            }
            for (byte, child) in self.edges(parent).to_vec() {
                self.nodes[child as usize].fail = self.advance(fallback, byte);
                order.push(child);
            }
        }
    }

    fn advance(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            match self.edges(at).iter().find(|edge| edge.0 == byte) {
                Some(edge) => return edge.1,
                None if at == ROOT => return ROOT,
                None => at = self.nodes[at as usize].fail,
            }
        }
    }
}

/// The stop strings as a tree of bytes, in the making.
#[derive(Debug)]
struct Trie {
    children: Vec<Vec<(u8, u32)>>,
    /// Depth, and the stop string that ends here.
    ends: Vec<(u32, u32)>,
}

impl Default for Trie {
    fn default() -> Self {
        Self {
            children: vec![Vec::new()],
            ends: vec![(0, NONE)],
        }
    }
}

impl Trie {
    fn insert(&mut self, stop: &[u8], index: u32) {
        let mut at = 0;
        for &byte in stop {
            let found = self.children[at].iter().find(|child| child.0 == byte);
            at = if let Some(child) = found {
                child.1 as usize
            } else {
                let child = self.children.len();
                self.children[at].push((byte, child as u32));
                self.children.push(Vec::new());
                self.ends.push((self.ends[at].0 + 1, NONE));
                child
            };
        }
        let hit = &mut self.ends[at].1;
        *hit = (*hit).min(index);
    }
}

/// Automata that open rows watch with; rows with the same stop strings share one.
#[derive(Debug, Default)]
pub(crate) struct StopLibrary {
    known: HashMap<Vec<String>, Weak<Automaton>>,
}

impl StopLibrary {
    /// A watch for these strings; `None` where there is nothing to watch for. An empty one is an error.
    pub(crate) fn watch(&mut self, stops: &[String], include: bool) -> Result<Option<StopStrings>> {
        if let Some(at) = stops.iter().position(String::is_empty) {
            return Err(Error::invalid(
                "stop",
                format!("the stop string at position {at} is empty"),
            ));
        }
        if stops.is_empty() {
            return Ok(None);
        }
        let known = self.known.get(stops).and_then(Weak::upgrade);
        let automaton = known.unwrap_or_else(|| {
            let automaton = Arc::new(Automaton::new(stops));
            self.known.retain(|_, old| old.strong_count() > 0);
            self.known.insert(stops.to_vec(), Arc::downgrade(&automaton));
            automaton
        });
        Ok(Some(StopStrings {
            automaton,
            include,
            state: ROOT,
            held: String::new(),
        }))
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
    automaton: Arc<Automaton>,
    include: bool,
    state: u32,
    held: String,
}

impl StopStrings {
    /// Take new text; what may be shown goes to `out`. Returns the stop string that completed first, of several
    /// that complete at the same place the longest.
    pub(crate) fn feed(&mut self, text: &str, out: &mut String) -> Option<usize> {
        let automaton = Arc::clone(&self.automaton);
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            if self.state == ROOT {
                // Nothing is begun: on to the next byte that begins a stop string.
                at += (bytes[at..].iter().position(|&byte| automaton.starts.has(byte)))
                    .unwrap_or(bytes.len() - at);
                if at == bytes.len() {
                    break;
                }
            }
            self.state = automaton.advance(self.state, bytes[at]);
            at += 1;
            let hit = automaton.nodes[self.state as usize].hit;
            if hit != NONE {
                let end = self.held.len() + at;
                let cut = if self.include {
                    end
                } else {
                    end - automaton.lengths[hit as usize]
                };
                self.show(text, cut, out);
                self.held.clear();
                return Some(hit as usize);
            }
        }
        let shown = self.held.len() + text.len() - automaton.nodes[self.state as usize].depth as usize;
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
        (self.state == ROOT).then_some(self.automaton.starts)
    }

    pub(crate) fn includes_stop(&self) -> bool {
        self.include
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(stops: &[String], include: bool) -> StopStrings {
        StopLibrary::default()
            .watch(stops, include)
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
    fn rows_with_the_same_strings_share_an_automaton() {
        let mut library = StopLibrary::default();
        let stops = ["a".to_owned()];
        let first = library.watch(&stops, false).expect("valid").expect("one");
        let second = library.watch(&stops, true).expect("valid").expect("one");
        assert!(Arc::ptr_eq(&first.automaton, &second.automaton));
        drop((first, second));
        library.watch(&["b".to_owned()], false).expect("valid");
        assert_eq!(library.known.len(), 1);
    }

    #[test]
    fn refuses_an_empty_stop_string() {
        assert!(StopLibrary::default().watch(&[String::new()], false).is_err());
    }
}
