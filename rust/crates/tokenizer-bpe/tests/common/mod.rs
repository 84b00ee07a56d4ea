//! Owns what the differential tests share: the comparison with the library, and texts that are hard to cut.

use proptest::prelude::*;
use tokenizer_bpe::FastBpe;
use tokenizers::Tokenizer;

/// The fast path and the library over the same file.
pub(crate) struct Pair {
    pub(crate) fast: FastBpe,
    pub(crate) library: Tokenizer,
}

impl Pair {
    /// Load both. The file must be of the supported family.
    pub(crate) fn load(json: &str) -> Self {
        let library: Tokenizer = json.parse().expect("the library loads the file");
        let fast = FastBpe::from_json(json).unwrap_or_else(|reason| panic!("not on the fast path: {reason}"));
        Self { fast, library }
    }

    /// Both, taking special tokens in a text for text.
    #[allow(dead_code)] // Not every test that shares this module asks for it.
    pub(crate) fn ignoring_special_tokens(mut self) -> Self {
        self.library.set_encode_special_tokens(true);
        Self {
            fast: self.fast.ignoring_special_tokens(),
            library: self.library,
        }
    }

    /// Compare ids and offsets, with and without the tokens around the text.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        for special in [false, true] {
            let Ok(expected) = self.library.encode_char_offsets(text, special) else {
                continue;
            };
            let ids = self.fast.encode(text, special);
            if ids != expected.get_ids() {
                return Err(format!(
                    "ids of {text:?}\n fast    {ids:?}\n library {:?}",
                    expected.get_ids()
                ));
            }
            let (same, offsets) = self.fast.encode_with_offsets(text, special);
            if same != ids || offsets != expected.get_offsets() {
                let theirs = expected.get_offsets();
                return Err(format!(
                    "offsets of {text:?}\n fast    {offsets:?}\n library {theirs:?}"
                ));
            }
        }
        Ok(())
    }
}

const PARTS: &[&str] = &[
    " ",
    "  ",
    "   ",
    "\n",
    "\r\n",
    "\r",
    "\t",
    "\u{b}",
    "\u{85}",
    "\u{a0}",
    "\u{2003}",
    "\u{2028}",
    "\u{3000}",
    "\u{200b}",
    "\u{feff}",
    "a",
    "b",
    "Z",
    "the",
    "The",
    "HELLO",
    "helloWorld",
    "éa",
    "e\u{301}",
    "É",
    "ß",
    "ſ",
    "İ",
    "Dž",
    "ʰ",
    "ª",
    "中",
    "中文字",
    "日本",
    "かな",
    "カナ",
    "한국",
    "\u{1100}\u{1161}\u{11a8}",
    "עברית",
    "العربية",
    "हिन्दी",
    "ไทย",
    "\u{301}",
    "\u{300}\u{323}",
    "'",
    "'s",
    "'S",
    "'ſ",
    "'ll",
    "'LL",
    "'lL",
    "'re",
    "'Ve",
    "'d",
    "’s",
    "1",
    "12",
    "123",
    "1234",
    "٣",
    "½",
    "²",
    "Ⅷ",
    "〇",
    "①",
    ".",
    ",",
    "!",
    "?!",
    "...",
    "/",
    "//",
    "-",
    "_",
    "(",
    ")",
    "\"",
    "#",
    "$",
    "€",
    "+",
    "=",
    "<",
    ">",
    "|",
    "«",
    "、",
    "。",
    "😀",
    "👩\u{200d}👩\u{200d}👧",
    "🇩🇪",
    "☺\u{fe0f}",
    "\0",
    "\u{1}",
    "\u{7f}",
    "\u{ad}",
    "\u{fffd}",
    "\u{e000}",
    "\u{10ffff}",
    "\u{50000}",
    "\u{378}",
    "ﬁ",
    "㌀",
    "\u{1d160}",
    "\u{f900}",
    "\u{344}",
    "\u{2126}",
    "aaaaaaaaaaaaaaaaaaaaaaaa",
];

/// Texts made of the parts that pre-tokenizers treat differently.
pub(crate) fn hard_text(specials: Vec<String>) -> impl Strategy<Value = String> {
    let mut parts: Vec<String> = PARTS.iter().copied().map(str::to_owned).collect();
    parts.extend(specials);
    let part = prop_oneof![
        8 => proptest::sample::select(parts),
        1 => any::<char>().prop_map(String::from),
        1 => "[a-zA-Z]{1,12}",
        1 => "[ -~]{1,4}",
    ];
    proptest::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}
