"""Encode, decode and lookups against the `tokenizers` package."""

import pytest
from llm_tokenizer import InvalidArgument
from tokenizer_samples import texts


@pytest.mark.parametrize("add_special_tokens", [False, True])
def test_encode_and_decode_equal_the_library(sample, add_special_tokens):
    for text in texts(400, seed=1):
        ids = sample.ours.encode(text, add_special_tokens=add_special_tokens)
        assert ids == sample.reference.encode(text, add_special_tokens=add_special_tokens).ids, text
        for skip in (False, True):
            decoded = sample.ours.decode(ids, skip_special_tokens=skip)
            assert decoded == sample.reference.decode(ids, skip_special_tokens=skip)


def test_smollm2_encodes_as_its_own_tokenizer(smollm2, smollm2_reference):
    for text in texts(2000, seed=2):
        assert smollm2.encode(text) == smollm2_reference.encode(text).ids, text


def test_smollm2_keeps_every_text(smollm2):
    # Its vocabulary has no token for a few bytes that text hardly ever holds; encoding leaves them out.
    known = {smollm2.token_bytes(token_id) for token_id in range(smollm2.vocab_size)}
    for text in texts(500, seed=3):
        if all(bytes([byte]) in known for byte in text.encode()):
            assert smollm2.decode(smollm2.encode(text), skip_special_tokens=False) == text


def test_encode_batch_equals_encode(sample):
    batch = texts(60, seed=4)
    for add in (False, True):
        one_by_one = [sample.ours.encode(text, add_special_tokens=add) for text in batch]
        assert sample.ours.encode_batch(batch, add_special_tokens=add) == one_by_one
    assert sample.ours.encode_batch([]) == []


def test_vocabulary_lookups_equal_the_library(sample):
    vocab = sample.reference.get_vocab(with_added_tokens=True)
    assert sample.ours.vocab_size == max(vocab.values()) + 1
    for token, token_id in vocab.items():
        assert sample.ours.token_to_id(token) == token_id
        assert sample.ours.id_to_token(token_id) == token
    assert sample.ours.token_to_id("not in there") is None
    assert sample.ours.id_to_token(sample.ours.vocab_size) is None
    assert sample.ours.id_to_token(-1) is None
    added = sample.reference.get_added_tokens_decoder()
    assert sample.ours.special_token_ids == {token_id for token_id, token in added.items() if token.special}


def test_token_bytes_join_to_the_text(smollm2):
    for text in texts(200, seed=5):
        ids = smollm2.encode(text)
        joined = b"".join(smollm2.token_bytes(token_id) for token_id in ids)
        assert joined.decode() == smollm2.decode(ids, skip_special_tokens=False)


def test_token_text_shows_broken_bytes_as_marks(smollm2):
    (first, *_) = smollm2.encode("🌶")
    assert smollm2.token_text(first) == "\ufffd" or smollm2.token_text(first) == "🌶"
    assert smollm2.token_text(smollm2.encode(" the")[0]) == " the"


def test_smollm2_special_tokens(smollm2):
    assert (smollm2.bos_token_id, smollm2.eos_token_id, smollm2.pad_token_id) == (1, 2, 2)
    assert smollm2.eos_token_ids == {2}
    assert smollm2.special_token_ids == set(range(17))
    assert smollm2.special_tokens["eos_token"] == "<|im_end|>"
    assert smollm2.vocab_size == 49152


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda t: t.encode(b"bytes"), "text"),
        (lambda t: t.encode("lone \ud800 surrogate"), "text"),
        (lambda t: t.encode_batch("one text"), "texts"),
        (lambda t: t.encode_batch(["a", 1]), "texts"),
        (lambda t: t.encode_batch(["a", "\udfff"]), "texts"),
        (lambda t: t.decode([t.vocab_size]), "ids"),
        (lambda t: t.decode([-1]), "ids"),
        (lambda t: t.decode([1.5]), "ids"),
        (lambda t: t.decode([[1]]), "ids"),
        (lambda t: t.decode([2**40]), "ids"),
        (lambda t: t.decode([True]), "ids"),
        (lambda t: t.token_bytes(t.vocab_size), "token_id"),
        (lambda t: t.token_text(-1), "token_id"),
    ],
)
def test_bad_arguments_name_the_field(sample, call, field):
    with pytest.raises(InvalidArgument) as caught:
        call(sample.ours)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_threads_encode_at_the_same_time(smollm2):
    from concurrent.futures import ThreadPoolExecutor

    batch = texts(200, seed=6)
    expected = [smollm2.encode(text) for text in batch]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(smollm2.encode, batch)) == expected
