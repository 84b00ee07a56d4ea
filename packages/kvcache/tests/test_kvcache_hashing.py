"""The block hash against its byte layout in plain Python, and against fixed vectors."""

import kvcache_blake3_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_kvcache import HASH_VERSION, InvalidArgument, block_hashes

TOKEN = st.integers(0, 2**31 - 1)


def test_the_reference_is_blake3():
    # From BLAKE3's published test vectors: the input is the bytes 0, 1, ... 250, 0, ... of the given length.
    expected = {
        0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
        1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
        1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
        2049: "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030",
    }
    for length, digest in expected.items():
        assert reference.blake3(bytes(i % 251 for i in range(length))).hex() == digest


def test_the_reference_is_blake3_with_a_key_too():
    # The same inputs under the key of BLAKE3's vectors; checked once against `blake3` 1.0.11 of PyPI.
    key = b"whats the Elvish word for friend"
    expected = {
        0: "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26",
        1: "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b",
        64: "ba8ced36f327700d213f120b1a207a3b8c04330528586f414d09f2f7d9ccb7e6",
        65: "c0a4edefa2d2accb9277c371ac12fcdbb52988a86edc54f0716e1591b4326e72",
        1025: "357dc55de0c7e382c900fd6e320acc04146be01db6a8ce7210b7189bd664ea69",
        2049: "9f29700902f7c86e514ddc4df1e3049f258b2472b6dd5267f61bf13983b78dd5",
    }
    for length, digest in expected.items():
        assert reference.blake3(bytes(i % 251 for i in range(length)), key).hex() == digest


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(TOKEN, max_size=40),
    block_size=st.integers(1, 9),
    salt=st.none() | st.binary(max_size=70),
    lora=st.none() | st.text(max_size=8),
    media=st.dictionaries(st.integers(0, 39), st.binary(min_size=1, max_size=40), max_size=3),
)
def test_hashes_follow_the_layout(tokens, block_size, salt, lora, media):
    items = [(offset, digest) for offset, digest in media.items() if offset < len(tokens)]
    got = block_hashes(tokens, block_size, salt=salt, lora=lora, media=items)
    assert got == reference.block_hashes(tokens, block_size, salt, lora, items)


def test_a_block_beyond_one_chunk_follows_the_layout():
    tokens = list(range(1100))
    assert block_hashes(tokens, 550) == reference.block_hashes(tokens, 550)


def test_fixed_vectors():
    """Version 2 never changes: a change of these is a new HASH_VERSION."""
    assert HASH_VERSION == 2
    plain = block_hashes(range(40), 16)
    assert [h.hex() for h in plain] == [
        "3d02f0fc5bd60653d9e44ca11379b90b",
        "b8f4749da70b8e5a7c51dc368c1d95e4",
    ]
    keyed = block_hashes(range(40), 16, salt=b"tenant", lora="adapter@3", media=[(20, b"\x01" * 32)])
    assert [h.hex() for h in keyed] == [
        "644fda0a198d2beae74d79fb89e3399d",
        "099e2b66abb92d0069b86443c32728dc",
    ]


def test_every_key_changes_every_later_hash():
    base = block_hashes(range(48))
    for keys in ({"salt": b""}, {"lora": ""}, {"salt": b"a"}, {"lora": "a"}, {"media": [(0, b"x")]}):
        other = block_hashes(range(48), **keys)
        assert not set(base) & set(other)
    middle = block_hashes(range(48), media=[(20, b"x")])
    assert middle[0] == base[0]
    assert not set(middle[1:]) & set(base)
    assert middle[1] != block_hashes(range(48), media=[(21, b"x")])[1]
    assert not set(block_hashes(range(48), 8)) & set(base)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("block_size", {"block_size": -1}),
        ("block_size", {"block_size": 0}),
        ("token_ids", {"token_ids": [-1]}),
        ("token_ids", {"token_ids": [1.5]}),
        ("media", {"media": [(-1, b"x")]}),
        ("media", {"media": [(2, b"x")]}),
        ("media", {"media": [(0, b"")]}),
        ("media", {"media": [(0, b"x"), (0, b"y")]}),
        ("media", {"media": [(0, "x")]}),
        ("salt", {"salt": "text"}),
        ("lora", {"lora": b"bytes"}),
    ],
)
def test_bad_input_names_the_field(field, arguments):
    with pytest.raises(InvalidArgument) as caught:
        block_hashes(**{"token_ids": [1, 2], **arguments})
    assert caught.value.field == field
