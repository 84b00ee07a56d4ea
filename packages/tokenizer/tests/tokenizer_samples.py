"""Small trained vocabularies of every kind, a reference for SmolLM2's, and texts that are hard to encode."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from llm_tokenizer import Tokenizer as OurTokenizer
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It isn't lazy, is it? No, it's not!",
    "def main(args):\n    for index in range(10):\n\t\tprint(f'{index:>4} = {args[index]}')\n",
    "Ďábel šeptá žluťoučký kůň; Größe, naïve café, 日本語 한국어 ไทย русский язык",
    "🌶️ 👩‍🚀 🇨🇿 ½ ² ① \uff11\uff12\uff13 1234567890   3.14159  \u00a0\u2003 \r\n\r\n tabs\t\tend",
] * 4
SPECIALS = ["<unk>", "<s>", "</s>", "<|im_end|>"]


@dataclass(frozen=True)
class Sample:
    kind: str
    ours: OurTokenizer
    reference: Tokenizer
    path: Path


def byte_level_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=480, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", normalized=False), "é wide"])
    return tokenizer


def _sentence_piece(prefix):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if prefix else "never")
    trainer = trainers.BpeTrainer(
        vocab_size=300, limit_alphabet=60, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    content = json.loads(tokenizer.to_str())
    vocab = content["model"]["vocab"]
    vocab.update({f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)})
    content["model"].update(byte_fallback=True, fuse_unk=True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    stages = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    content["normalizer"] = replace
    if prefix:
        content["normalizer"] = {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace],
        }
        stages.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    content["pre_tokenizer"] = None
    content["decoder"] = {"type": "Sequence", "decoders": stages}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def sentence_piece_with_prefix():
    return _sentence_piece(prefix=True)


def sentence_piece_without_prefix():
    return _sentence_piece(prefix=False)


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=250, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _word_piece(cleanup):
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    trainer = trainers.WordPieceTrainer(vocab_size=250, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_piece():
    return _word_piece(cleanup=False)


def word_piece_with_cleanup():
    return _word_piece(cleanup=True)


def words_without_decoder():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=200, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bpe_with_end_of_word():
    """Its decoder treats the last token of the text in a way of its own."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIALS, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


BUILDERS = [
    byte_level_bpe,
    sentence_piece_with_prefix,
    sentence_piece_without_prefix,
    unigram,
    word_piece,
    word_piece_with_cleanup,
    words_without_decoder,
    bpe_with_end_of_word,
]


def smollm2_reference(metadata):
    """Digits one by one, then GPT-2's byte-level rule: what SmolLM2's own tokenizer.json does."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    return tokenizer


SPLITS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def with_split(reference, name):
    """A copy of a byte-level tokenizer that cuts text as the model family `name` does."""
    copy = Tokenizer.from_str(reference.to_str())
    byte_level = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=name in {"gpt-2", "default", "smollm"}
    )
    stages = [byte_level]
    if name == "smollm":
        stages.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif name in SPLITS:
        stages.insert(0, pre_tokenizers.Split(Regex(SPLITS[name]), behavior="isolated"))
    if name == "qwen2":
        copy.normalizer = normalizers.NFC()
    copy.pre_tokenizer = pre_tokenizers.Sequence(stages)
    return copy


_RANGES = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x400, 0x4FF), (0xE00, 0xE7F), (0x3040, 0x30FF)]
_RANGES += [(0x4E00, 0x4FFF), (0xAC00, 0xAD00), (0x1F300, 0x1F6FF), (0x2000, 0x206F), (0xFF00, 0xFFEF)]
_WORDS = [
    "if x:",
    "return",
    "    ",
    "\t",
    "\n",
    "\r\n",
    "\n\n\n",
    " ",
    "  ",
    "It's",
    "I'LL",
    "12345",
    "<|im_end|>",
]
_WORDS += ["👩‍🚀", "🌶️", "\u200b", "\ufeff", "e\u0301", "\u0000", "\ufffd", "((a+b)*c)", "<s>", "▁", "</s>x"]


def texts(count, seed):
    """Random texts: many scripts, code and white space, words of the corpus, and bytes read as Latin-1."""
    rng = random.Random(seed)
    words = " ".join(CORPUS).split(" ")
    kinds = [
        lambda: "".join(chr(rng.randint(*rng.choice(_RANGES))) for _ in range(rng.randint(0, 40))),
        lambda: "".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 20))),
        lambda: " ".join(rng.choice(words) for _ in range(rng.randint(1, 20))),
        lambda: rng.randbytes(rng.randint(0, 60)).decode("latin-1"),
        lambda: "".join(rng.choice(" \t\n\r\u00a0\u3000a1") for _ in range(rng.randint(0, 30))),
    ]
    return ["", " ", *(rng.choice(kinds)() for _ in range(count - 2))]
