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
    """Version 1 never changes: a change of these is a new HASH_VERSION."""
    assert HASH_VERSION == 1
    plain = block_hashes(range(40), 16)
    assert [h.hex() for h in plain] == [
        "8fbe52446034b8afebd5417f903246f2",
        "60ac2692dded78459b75ce1e452b09e6",
    ]
    keyed = block_hashes(range(40), 16, salt=b"tenant", lora="adapter@3", media=[(20, b"\x01" * 32)])
    assert [h.hex() for h in keyed] == [
        "2615a43dafb89e716853ce16f9588136",
        "6fbb3103d69b2473cb4b3b9e808703ea",
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
