"""Owns a reader of the event wire format in plain Python: a model for followers in other languages."""

VERSION = 1
NAMES = {0: "stored", 1: "removed", 2: "moved", 3: "cleared"}
FIELDS = {
    "stored": ["keys", "parent", "token_ids", "block_size", "group", "tier", "lora", "has_extra_keys"],
    "removed": ["keys", "group", "tier"],
    "moved": ["keys", "group", "from", "to", "is_copy"],
    "cleared": ["tier"],
}


class Msgpack:
    """Reads the values that the format uses from the front of some bytes."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, n):
        assert self.at + n <= len(self.data), "the bytes end"
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, width):
        return int.from_bytes(self.take(width), "big")

    def value(self):
        tag = self.number(1)
        if tag < 0x80:
            return tag
        if tag < 0xA0:
            assert tag >= 0x90, "maps are not used"
            return [self.value() for _ in range(tag & 15)]
        if tag < 0xC0:
            return self.take(tag & 31).decode()
        constants = {0xC0: None, 0xC2: False, 0xC3: True}
        if tag in constants:
            return constants[tag]
        if 0xC4 <= tag <= 0xC6:
            return self.take(self.number(1 << (tag - 0xC4)))
        if 0xCC <= tag <= 0xCF:
            return self.number(1 << (tag - 0xCC))
        if 0xD9 <= tag <= 0xDB:
            return self.take(self.number(1 << (tag - 0xD9))).decode()
        assert tag in (0xDC, 0xDD), f"tag {tag:#x} is not used"
        return [self.value() for _ in range(self.number(2 << (tag - 0xDC)))]


def words(data, width):
    return [data[at : at + width] for at in range(0, len(data), width)]


def read_event(raw):
    kind = NAMES[raw[0]]
    event = {"kind": kind, **dict(zip(FIELDS[kind], raw[1:], strict=False))}
    if "keys" in event:
        event["keys"] = [key.hex() for key in words(event["keys"], 16)]
    if kind == "stored":
        event["parent"] = event["parent"] and event["parent"].hex()
        event["token_ids"] = [int.from_bytes(word, "little") for word in words(event["token_ids"], 4)]
    return event


def read_batch(data):
    """Returns the batch as a dictionary, keys in hexadecimal."""
    reader = Msgpack(data)
    version, epoch, seq, is_snapshot, events = reader.value()[:5]
    assert version == VERSION
    assert reader.at == len(data), "bytes follow the batch"
    return {"epoch": epoch, "seq": seq, "is_snapshot": is_snapshot, "events": list(map(read_event, events))}
