"""Owns a plain-Python model of the cache: what each call must answer, without hashes, lists or speed.

Block ids are taken from the cache under test; the model says whether the cache was allowed to hand them out.
It also plays the device: `memory` holds, for each block and offset, the identity of what was written there.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

JUNK = -1


@dataclass
class ModelSequence:
    keys: tuple
    media: dict
    tokens: list
    table: list = field(default_factory=list)
    reserved: int = 0
    computed: int = 0
    settled: int = 0

    def contents(self, n):
        """The identity of the keys and values at positions 0 to n - 1: all that is seen up to there."""
        seen, out = hash(self.keys), []
        for position in range(n):
            seen = hash((seen, self.tokens[position], self.media.get(position)))
            out.append(seen)
        return out


class ReferenceModel:
    def __init__(self, block_size, num_blocks, prefix_caching):
        self.size = block_size
        self.num_blocks = num_blocks
        self.prefix_caching = prefix_caching
        self.references = dict.fromkeys(range(num_blocks), 0)
        self.cached = OrderedDict()  # unowned published blocks, next eviction first
        self.names = {}  # published block -> name
        self.index = {}  # name -> block
        self.sequences = {}
        self.copies = []
        self.memory = [[JUNK] * block_size for _ in range(num_blocks)]
        self.queries = self.hits = self.evictions = 0

    # Blocks

    def free_blocks(self):
        return {b for b, n in self.references.items() if n == 0 and b not in self.cached}

    def num_available(self):
        return sum(n == 0 for n in self.references.values())

    def adopt(self, block):
        """The cache handed out this block as new: it had to be free, or the first to evict when none was."""
        free = self.free_blocks()
        if free:
            assert block in free, f"block {block} was handed out while others were free"
        else:
            expected = next(iter(self.cached))
            assert block == expected, f"block {block} was evicted, not {expected}"
            del self.cached[block]
            del self.index[self.names.pop(block)]
            self.evictions += 1
        self.references[block] = 1

    def acquire(self, block):
        self.cached.pop(block, None)
        self.references[block] += 1

    def drop(self, block):
        self.references[block] -= 1
        if self.references[block] == 0 and block in self.names:
            self.cached[block] = None

    # Sequences

    def name(self, seq, i):
        """What block `i` of a sequence is called; the identity of its last position covers all before."""
        sequence = self.sequences[seq]
        return sequence.contents((i + 1) * self.size)[-1]

    def open(self, seq, tokens, salt, lora, media):
        assert seq not in self.sequences
        self.sequences[seq] = ModelSequence((salt, lora), dict(media), list(tokens))

    def match(self, seq, max_tokens):
        sequence = self.sequences[seq]
        if not self.prefix_caching:
            return 0
        limit = max(len(sequence.tokens) - 1, 0)
        if max_tokens is not None:
            limit = min(limit, max_tokens)
        for i in range(limit // self.size):
            block = self.index.get(self.name(seq, i))
            if block is None:
                break
            self.acquire(block)
            sequence.table.append(block)
        hit = len(sequence.table) * self.size
        sequence.reserved = sequence.computed = hit
        sequence.settled = len(sequence.table)
        self.queries += len(sequence.tokens)
        self.hits += hit
        return hit

    def grow(self, seq, n, table):
        """Whether `n` more tokens fit; `table` is the block table that the cache has now."""
        sequence = self.sequences[seq]
        before = len(sequence.table)
        added = -(-(sequence.reserved + n) // self.size) - before
        partial = n > 0 and sequence.reserved % self.size != 0
        shared = partial and self.references[sequence.table[-1]] > 1
        if added + shared > self.num_available():
            return False
        if shared:
            source, destination = sequence.table[-1], table[before - 1]
            self.adopt(destination)
            self.drop(source)
            self.copies.append((source, destination))
            sequence.table[-1] = destination
        elif partial and sequence.table[-1] in self.names:
            del self.index[self.names.pop(sequence.table[-1])]
        for block in table[before:]:
            self.adopt(block)
            sequence.table.append(block)
        sequence.reserved += n
        return True

    def commit(self, seq, num_computed):
        sequence = self.sequences[seq]
        sequence.computed = max(sequence.computed, num_computed)
        if not self.prefix_caching:
            return
        full = min(sequence.computed, len(sequence.tokens)) // self.size
        for i in range(sequence.settled, full):
            name, block = self.name(seq, i), sequence.table[i]
            if name not in self.index:
                self.index[name] = block
                self.names[block] = name
        sequence.settled = max(sequence.settled, full)

    def shrink(self, seq, n):
        sequence = self.sequences[seq]
        sequence.reserved = min(sequence.reserved, n)
        sequence.computed = min(sequence.computed, sequence.reserved)
        sequence.settled = min(sequence.settled, sequence.reserved // self.size)
        while len(sequence.table) > -(-sequence.reserved // self.size):
            self.drop(sequence.table.pop())

    def truncate(self, seq, n):
        self.shrink(seq, n)
        sequence = self.sequences[seq]
        del sequence.tokens[n:]
        sequence.media = {offset: digest for offset, digest in sequence.media.items() if offset < n}

    def fork(self, seq, child):
        parent = self.sequences[seq]
        reserved = min(parent.reserved, len(parent.tokens))
        table = parent.table[: -(-reserved // self.size)]
        for block in table:
            self.acquire(block)
        self.sequences[child] = ModelSequence(
            parent.keys,
            dict(parent.media),
            list(parent.tokens),
            table,
            reserved,
            min(parent.computed, reserved),
            min(parent.settled, reserved // self.size),
        )

    def release(self, seq):
        self.shrink(seq, 0)
        del self.sequences[seq]

    def reset_prefix_cache(self):
        if any(self.references.values()):
            return False
        self.cached.clear()
        self.names.clear()
        self.index.clear()
        return True

    # The device

    def run_step(self, copies, ends):
        """Applies the copies in order, then writes each sequence from what is computed up to its end."""
        assert copies == self.copies
        self.copies = []
        for source, destination in copies:
            self.memory[destination] = list(self.memory[source])
        for seq, end in ends.items():
            sequence = self.sequences[seq]
            contents = sequence.contents(end)
            for position in range(sequence.computed, end):
                block = sequence.table[position // self.size]
                self.memory[block][position % self.size] = contents[position]

    def check_memory(self):
        """What each sequence holds as computed is what its own tokens give: no stale hit, no overwrite."""
        for seq, sequence in self.sequences.items():
            end = min(sequence.computed, len(sequence.tokens))
            held = [self.memory[sequence.table[p // self.size]][p % self.size] for p in range(end)]
            assert held == sequence.contents(end), f"sequence {seq} reads what it did not write"

    def stats(self):
        used = sum(n > 0 for n in self.references.values())
        return {
            "num_blocks": self.num_blocks,
            "free": self.num_blocks - used - len(self.cached),
            "cached": len(self.cached),
            "used": used,
            "queries": self.queries,
            "hits": self.hits,
            "evictions": self.evictions,
            "sequences": len(self.sequences),
        }
