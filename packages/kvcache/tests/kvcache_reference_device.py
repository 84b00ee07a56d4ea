"""Owns the memories of device and host that the model plays, and the identity of what belongs in them.

A block holds, for each of its tokens, the identity of what was written there: all tokens seen up to it.
Junk stands where nothing good was written, so that whoever reads it is found.
"""

from llm_kvcache import COPY, LOAD, STORE

JUNK = -1


class Identities:
    """Numbers for things: equal things get equal numbers. No hash can collide here."""

    def __init__(self):
        self._numbers = {}

    def of(self, *thing):
        return self._numbers.setdefault(thing, len(self._numbers))


class ReferenceDevice:
    def __init__(self, layout, num_blocks, host_blocks):
        self.layout = layout
        width = max(group.size for group in layout.groups)
        self.blocks = [[JUNK] * width for _ in range(num_blocks)]
        self.slots = [[JUNK] * width for _ in range(host_blocks)]

    def carry_out(self, moves, host_fails):
        """Copies in order. Where the host fails, its transfers leave junk; copies on the device are made."""
        memories = {COPY: (self.blocks, self.blocks), STORE: (self.blocks, self.slots)}
        memories[LOAD] = (self.slots, self.blocks)
        for kind, source, destination in moves:
            read, write = memories[kind]
            lost = host_fails and kind != COPY
            write[destination] = [JUNK] * len(read[source]) if lost else list(read[source])

    def write(self, sequence, end):
        """Runs a step that computes the tokens of a sequence from what is computed up to `end`."""
        for group in self.layout.token_groups:
            for position in range(sequence.computed, end):
                block = sequence.tables[group.number][position // group.size]
                assert block is not None, "a token of this step has no block"
                offset = 0 if group.is_state else position % group.size
                self.blocks[block][offset] = sequence.identity(position + 1)
        self.write_encoder(sequence)

    def write_encoder(self, sequence):
        for group in self.layout.groups:
            if not group.holds_tokens and sequence.tables[group.number]:
                for i, block in enumerate(sequence.tables[group.number]):
                    self.blocks[block] = [sequence.encoder_identity(i)] * len(self.blocks[block])
                sequence.encoder_is_written = True

    def check(self, seq, sequence):
        """What the sequence holds as computed is what its own tokens give: no stale hit, no overwrite."""
        for group in self.layout.token_groups:
            for i, block in enumerate(sequence.tables[group.number]):
                start, end = i * group.size, min(sequence.computed, (i + 1) * group.size)
                if block is None or start >= end:
                    continue
                if group.is_state:
                    held, due = self.blocks[block][:1], [sequence.identity(end)]
                else:
                    held = self.blocks[block][: end - start]
                    due = [sequence.identity(n) for n in range(start + 1, end + 1)]
                assert held == due, f"sequence {seq} reads what is not its own: {group.number}, {i}"
        if sequence.encoder_is_written:
            for group in self.layout.groups:
                if not group.holds_tokens:
                    for i, block in enumerate(sequence.tables[group.number]):
                        assert self.blocks[block][0] == sequence.encoder_identity(i), "overwritten"
