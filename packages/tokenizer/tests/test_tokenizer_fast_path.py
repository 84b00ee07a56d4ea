"""Which tokenizers take the fast path, and that its offsets are the library's."""

import numpy as np
import pytest
from llm_tokenizer import InvalidArgument
from tokenizer_assets import NOT_BYTE_LEVEL
from tokenizer_samples import texts


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


def test_real_byte_level_tokenizers_take_the_fast_path_and_others_say_why(real):
    if real.file in NOT_BYTE_LEVEL:
        assert real.ours.encode_path == "library"
        assert real.ours.library_reason
    else:
        assert real.ours.encode_path == "fast", real.ours.library_reason
        assert real.ours.library_reason is None
    for text in texts(200, seed=13):
        ids, offsets = real.ours.encode_with_offsets(text)
        expected = real.library.encode(text)
        assert ids == expected.ids, text
        assert [tuple(pair) for pair in offsets.tolist()] == expected.offsets, text


def test_offsets_refuse_what_encode_refuses(smollm2):
    for text in (b"bytes", "lone \ud800 surrogate"):
        with pytest.raises(InvalidArgument, match="text"):
            smollm2.encode_with_offsets(text)
    ids, offsets = smollm2.encode_with_offsets("")
    assert ids == []
    assert offsets.shape == (0, 2)
