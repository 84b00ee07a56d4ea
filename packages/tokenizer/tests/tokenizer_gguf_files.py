"""A GGUF metadata reader and writer in plain Python, apart from the one under test."""

import struct

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}


def read(path):
    with path.open("rb") as file:
        magic, _version, _tensors, pairs = struct.unpack("<4sIQQ", file.read(24))
        assert magic == b"GGUF"
        return {_text(file): _value(file, *struct.unpack("<I", file.read(4))) for _ in range(pairs)}


def _text(file):
    return file.read(*struct.unpack("<Q", file.read(8))).decode()


def _value(file, kind):
    if kind == 8:
        return _text(file)
    if kind == 9:
        inner, length = struct.unpack("<IQ", file.read(12))
        return [_value(file, inner) for _ in range(length)]
    layout = _SCALARS[kind]
    return struct.unpack(layout, file.read(struct.calcsize(layout)))[0]


def dump(metadata):
    """The bytes of a GGUF file without tensors."""
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, 0, len(metadata))]
    for key, value in metadata.items():
        kind, body = _packed(value)
        parts += [_packed_text(key), struct.pack("<I", kind), body]
    return b"".join(parts)


def _packed_text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _packed(value):
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 5, struct.pack("<i", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _packed_text(value)
    items = [_packed(item) for item in value]
    inner = items[0][0] if items else 8
    return 9, struct.pack("<IQ", inner, len(items)) + b"".join(body for _, body in items)
