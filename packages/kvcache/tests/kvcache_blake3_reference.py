"""Owns a plain-Python BLAKE3, written from its paper, and the block hash's byte layout on top of it."""

from struct import pack, unpack

IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED_HASH = 1, 2, 4, 8, 16
COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def _rotate(value, bits):
    return (value >> bits | value << 32 - bits) & 0xFFFFFFFF


def _mix(v, a, b, c, d, x, y):
    for word, first, second in ((x, 16, 12), (y, 8, 7)):
        v[a] = (v[a] + v[b] + word) & 0xFFFFFFFF
        v[d] = _rotate(v[d] ^ v[a], first)
        v[c] = (v[c] + v[d]) & 0xFFFFFFFF
        v[b] = _rotate(v[b] ^ v[c], second)


def _compress(chaining, block, counter, length, flags):
    m = list(unpack("<16I", block.ljust(64, b"\0")))
    v = [*chaining, *IV[:4], counter & 0xFFFFFFFF, counter >> 32, length, flags]
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(COLUMNS_AND_DIAGONALS):
            _mix(v, a, b, c, d, m[2 * i], m[2 * i + 1])
        m = [m[p] for p in PERMUTATION]
    return [v[i] ^ v[i + 8] for i in range(8)]


def _chunk(data, counter, key, mode, root):
    """Chaining value of a chunk of at most 1024 bytes."""
    blocks = [data[i : i + 64] for i in range(0, len(data), 64)] or [b""]
    chaining = key
    for i, block in enumerate(blocks):
        flags = (CHUNK_START if i == 0 else 0) | ((CHUNK_END | root) if i == len(blocks) - 1 else 0)
        chaining = _compress(chaining, block, counter, len(block), flags | mode)
    return chaining


def _tree(data, counter, key, mode, root):
    """Chaining value of a subtree; its left part holds the largest power of two of whole chunks."""
    if len(data) <= 1024:
        return _chunk(data, counter, key, mode, root)
    chunks = 1 << ((len(data) - 1) // 1024).bit_length() - 1
    left = _tree(data[: 1024 * chunks], counter, key, mode, 0)
    right = _tree(data[1024 * chunks :], counter + chunks, key, mode, 0)
    return _compress(key, pack("<16I", *left, *right), 0, 64, PARENT | mode | root)


def blake3(data, key=None):
    """The hash, or with a key of 32 bytes the keyed hash."""
    words, mode = (IV, 0) if key is None else (unpack("<8I", key), KEYED_HASH)
    return pack("<8I", *_tree(data, 0, words, mode, ROOT))


def _extra(tag, payload):
    return bytes([tag]) + pack("<I", len(payload)) + payload


def block_hashes(tokens, block_size, salt=None, lora=None, media=()):
    message = b"llm-kvcache/root" + pack("<II", 2, block_size)
    if salt is not None:
        message += _extra(1, salt)
    if lora is not None:
        message += _extra(2, lora.encode())
    parent, hashes = blake3(message)[:16], []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        message = pack(f"<{block_size}I", *tokens[start : start + block_size])
        for offset, digest in sorted(media):
            if start <= offset < start + block_size:
                message += _extra(3, pack("<I", offset - start) + digest)
        parent = blake3(message, key=parent + b"llm-kvcache/node")[:16]
        hashes.append(parent)
    return hashes
