"""Owns the public block hash, for routers and other processes that want to know what a cache holds.

The byte layout, version `HASH_VERSION` = 2. All integers are unsigned, 32 bits, little endian. `BLAKE3-128`
is the first 16 bytes of BLAKE3's output, `·` joins bytes, `?` marks a part left out where there is no such
key:

    root          = BLAKE3-128("llm-kvcache/root" · version · block_size · extra(1, salt)? · extra(2, lora)?)
    hash[i]       = BLAKE3-128 keyed by (parent · "llm-kvcache/node") of (tokens · media)
    parent        = hash[i - 1], or root for the first block: 16 bytes, so that the key has 32
    tokens        = the ids of the block's block_size tokens; only full blocks have a hash
    media         = extra(3, offset within the block · digest) for each item that starts in the block,
                    by ascending offset
    extra(tag, x) = tag (one byte) · length of x in bytes · x

The chain carries salt, adapter and media into every later block. The parent is the key, because the 64 bytes
of 16 tokens then are one compression of BLAKE3. Where a cache has groups of several block sizes, block_size
is their greatest common divisor, and a group's block is named by the hash at its end.
"""

from collections.abc import Sequence

from llm_kvcache import _native
from llm_kvcache.arguments import IntArray, chain_keys, int32_array, integer

HASH_VERSION: int = _native.HASH_VERSION
"""Version of the byte layout; it is part of every hash."""


def block_hashes(
    token_ids: IntArray,
    block_size: int = 16,
    *,
    salt: bytes | None = None,
    lora: str | None = None,
    media: Sequence[tuple[int, bytes]] = (),
) -> list[bytes]:
    """Computes the names under which a cache would keep the full blocks of a sequence.

    Args:
        token_ids: int32 `[n]`, not negative.
        block_size: Tokens a block holds.
        salt: As for `KVCache.open`.
        lora: As for `KVCache.open`.
        media: As for `KVCache.open`.

    Returns:
        `n // block_size` hashes of 16 bytes.

    Raises:
        InvalidArgument: An argument is outside what it may be.
    """
    keys = chain_keys(salt, lora, media)
    return _native.block_hashes(int32_array("token_ids", token_ids), integer("block_size", block_size), keys)
