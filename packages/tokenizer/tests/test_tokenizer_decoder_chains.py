"""Decoders of every stage and many orders: the detokenizer's text is the library's whole decode."""

import json
import random

import pytest
from llm_tokenizer import InvalidArgument, TokenizerError
from llm_tokenizer import Tokenizer as OurTokenizer
from tokenizer_rows import common_start, random_cuts, row_text
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models

# Spellings that matter to one stage or another, many of them more than once or inside others.
TOKENS = [
    "a", "b", "x", "ab", "▁", "▁▁", "▁a", "a▁", "▁ab", " ", "  ", "a ", " a", "##a", "##",
    "##.", ".", "?", "'", "n't", "'s", "do not", "</w>", "a</w>", "</w>b", "a</w>b</w>", "|",
    "a|b", "<pad>", "<pad>a", "é", "日本", "🌶️", "Ġ", "Ġa", "Ã", "©", "ðŁ", "Į", "¶", "à", "Ċ",
    "\n", "�", "<0x+5>", "▁<0x41>", "<0x411>", "<0xZZ>", "H", "HH", "aH", "Ha",
]  # fmt: skip
BYTES = [
    f"<0x{byte:02X}>"
    for byte in (0x41, 0x20, 0xC3, 0xA9, 0xE2, 0x96, 0x81, 0xF0, 0x9F, 0x8C, 0xB6, 0xFF, 0x0A)
]
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]

CHAINS = {
    "none": None,
    "byte level": [decoders.ByteLevel()],
    "llama": [*LLAMA, decoders.Strip(" ", 1, 0)],
    "gemma": LLAMA,
    "replace, no fuse": LLAMA[:2],
    "fallback, metaspace": [decoders.ByteFallback(), decoders.Metaspace()],
    "metaspace, fallback": [decoders.Metaspace(), decoders.ByteFallback()],
    "fallback, word piece": [decoders.ByteFallback(), decoders.WordPiece(cleanup=True)],
    "word piece, fallback": [decoders.WordPiece(prefix="x"), decoders.ByteFallback(), decoders.Fuse()],
    "fallback, replace": [decoders.ByteFallback(), decoders.Replace("▁", "é"), decoders.Replace("�", "<?>")],
    "metaspace": [decoders.Metaspace()],
    "metaspace, never": [decoders.Metaspace(prepend_scheme="never")],
    "metaspace, H": [decoders.Metaspace(replacement="H", prepend_scheme="first")],
    "word piece": [decoders.WordPiece()],
    "word piece, cleanup": [decoders.WordPiece(prefix="##", cleanup=True)],
    "word piece, odd": [
        decoders.WordPiece(prefix="a", cleanup=True),
        decoders.Fuse(),
        decoders.Strip("b", 2, 0),
    ],
    "end of word": [decoders.BPEDecoder()],
    "end of word, odd": [decoders.BPEDecoder(suffix="a")],
    "end of word, more": [
        decoders.Metaspace(),
        decoders.BPEDecoder(suffix="b"),
        decoders.Replace(Regex(" +"), "_"),
    ],
    "end of word, fuse": [
        decoders.BPEDecoder(),
        decoders.Fuse(),
        decoders.Replace("a ", "[]"),
        decoders.Strip("b", 1, 0),
    ],
    "end of word, twice": [decoders.BPEDecoder(), decoders.BPEDecoder(suffix="a")],
    "ctc": [decoders.CTC()],
    "ctc, plain": [decoders.CTC(pad_token="a", cleanup=False)],
    "ctc, odd": [
        decoders.Replace("▁", ""),
        decoders.CTC(pad_token="x", word_delimiter_token="a"),
        decoders.Metaspace(),
    ],
    "ctc, word piece": [decoders.CTC(pad_token="b"), decoders.WordPiece(), decoders.BPEDecoder(suffix="a")],
    "metaspace, ctc": [decoders.Metaspace(), decoders.CTC()],
    "end of word, ctc": [decoders.BPEDecoder(), decoders.CTC()],
    "ctc, fallback": [decoders.CTC(), decoders.ByteFallback(), decoders.Fuse()],
    "fallback, ctc": [decoders.ByteFallback(), decoders.CTC()],
    "end of word, fallback": [decoders.BPEDecoder(), decoders.ByteFallback()],
    "fuse": [decoders.Fuse()],
    "fuse, replace": [decoders.Fuse(), decoders.Replace("aa", "b"), decoders.Replace("ba", "")],
    "fuse, replace regex": [decoders.Fuse(), decoders.Replace(Regex("a+"), "A")],
    "fuse, strip": [decoders.Fuse(), decoders.Strip("a", 2, 0), decoders.Strip("b", 1, 0)],
    "fuse, metaspace": [decoders.Fuse(), decoders.Metaspace(), decoders.Replace("a", "▁")],
    "fuse, metaspace never": [decoders.Fuse(), decoders.Metaspace(prepend_scheme="never")],
    "fuse, word piece": [decoders.Fuse(), decoders.WordPiece(cleanup=True)],
    "fuse, end of word": [decoders.Fuse(), decoders.BPEDecoder()],
    "fuse, byte level": [decoders.Fuse(), decoders.ByteLevel()],
    "fuse, ctc": [decoders.Fuse(), decoders.CTC()],
    "byte level, strip": [decoders.ByteLevel(), decoders.Strip(" ", 3, 0)],
    "byte level, replace": [
        decoders.ByteLevel(),
        decoders.Replace("🌶️", "pepper"),
        decoders.Replace("�", "?"),
    ],
    "replace, byte level": [decoders.Replace("▁", "Ġ"), decoders.ByteLevel()],
    "fallback, byte level": [decoders.ByteFallback(), decoders.ByteLevel()],
    "fallback, twice": [decoders.ByteFallback(), decoders.ByteFallback()],
    "replace regex": [decoders.Replace(Regex("[ab]"), "▁"), decoders.Metaspace()],
    "replace nothing": [decoders.Fuse(), decoders.Replace("", "-")],
    "strip each": [decoders.Strip("a", 1, 0), decoders.Fuse()],
    "strip both ends": [decoders.Fuse(), decoders.Strip("a", 1, 2)],
}


def build(chain):
    tokens = TOKENS + BYTES
    reference = Tokenizer(models.WordLevel({token: at for at, token in enumerate(tokens)}, unk_token="a"))
    reference.add_special_tokens(["<s>", "▁special", "a</w>"])
    reference.add_tokens([AddedToken("▁added ", normalized=False), "<0x42>"])
    if chain is not None:
        reference.decoder = decoders.Sequence(chain)
    return reference


@pytest.fixture(scope="module", params=CHAINS)
def pair(request, tmp_path_factory):
    reference = build(CHAINS[request.param])
    path = tmp_path_factory.mktemp("chain") / "tokenizer.json"
    reference.save(str(path))
    return OurTokenizer.from_file(path), reference


def decode(reference, ids, skip):
    """The library's text, or `None` where its decoder panics."""
    try:
        return reference.decode(ids, skip_special_tokens=skip)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def random_ids(rng, size, length):
    """Few different tokens at a time, so that repeats and runs of bytes are common."""
    pool = [rng.randrange(size) for _ in range(rng.randint(1, 8))]
    if rng.random() < 0.4:
        pool += range(len(TOKENS), len(TOKENS) + len(BYTES))
    return [rng.choice(pool) for _ in range(rng.randint(0, length))]


def test_any_cut_is_the_whole_decode(pair, sequences):
    ours, reference = pair
    rng = random.Random(json.dumps(reference.to_str()))
    for _ in range(sequences(200, 2000)):
        prompt = random_ids(rng, ours.vocab_size, 5) if rng.random() < 0.5 else []
        ids, skip = random_ids(rng, ours.vocab_size, 12), rng.random() < 0.5
        before, after = decode(reference, prompt, skip), decode(reference, prompt + ids, skip)
        if before is None or after is None:
            continue
        text = row_text(ours, random_cuts(rng, ids), prompt, skip_special_tokens=skip)
        assert text == after[common_start(before, after) :], (prompt, ids, skip)


def test_a_token_that_breaks_the_decoder_is_refused(tmp_path):
    """`Strip` at the end of each token fails in the library on a token that is shorter than it strips."""
    reference = build([decoders.Strip("a", 0, 2)])
    reference.save(str(tmp_path / "tokenizer.json"))
    ours = OurTokenizer.from_file(tmp_path / "tokenizer.json")
    det = ours.detokenizer()
    row = det.open()
    with pytest.raises(InvalidArgument, match="decoder fails on the token 0") as caught:
        det.step([row, row], [TOKENS.index("do not"), TOKENS.index("a")])
    assert caught.value.field == "ids"
    with pytest.raises(InvalidArgument) as caught:
        det.open([0])
    assert caught.value.field == "prompt_ids"
    with pytest.raises(TokenizerError):
        ours.decode([0])
    assert det.finish(row) == ""
