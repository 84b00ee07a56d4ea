"""Owns one sequence of the model: its tokens, its block tables, and how far each of them reaches."""

from dataclasses import dataclass

from llm_kvcache import BlockInfo

ATTENTION_SCALE = 32_768
"""As `kvcache-sequences` has it: what a block costs to compute again grows with its depth."""


@dataclass
class Drop:
    """A block that a sequence or a pin gives up."""

    block: int
    parent: int | None
    depth: int
    size: int

    def info(self, retention, now_s):
        priority, ttl_s = retention
        expires_at = None if ttl_s is None else now_s + ttl_s
        return BlockInfo(priority, expires_at, self.size * (1 + self.depth / ATTENTION_SCALE), self.parent)


class ModelSequence:
    def __init__(self, layout, identities, keys, tokens, media, tenant="", encoder_tokens=0):
        self.layout = layout
        self.identities = identities
        self.keys = keys
        self.tokens = list(tokens)
        self.media = dict(media)
        self.tenant = tenant
        self.encoder_tokens = encoder_tokens
        self.encoder = identities.of("encoder", object())
        self.encoder_is_written = False
        self.ahead = []  # tokens that a step sampled and the cache was not told yet
        self.tables = [[] for _ in layout.groups]  # None where a block was given back
        self.settled = [0] * len(layout.groups)
        self.reserved = self.computed = 0
        self.retention = (0, None)
        self.awaits_load = None  # a load that is due or on its way, without which its blocks hold nothing
        self._identities = [identities.of("root", keys)]

    def identity(self, n):
        """The identity of the keys and values of the first `n` tokens: all that is seen up to there."""
        for position in range(len(self._identities) - 1, n):
            known = len(self.tokens)
            token = self.tokens[position] if position < known else self.ahead[position - known]
            here = (self._identities[-1], token, self.media.get(position))
            self._identities.append(self.identities.of(*here))
        return self._identities[n]

    def encoder_identity(self, block):
        return self.identities.of("encoder block", self.encoder, block)

    def name(self, group, block):
        """What the contents of a full block are called; None where its tokens are not known."""
        size = self.layout.groups[group].size
        end = (block + 1) * size
        return (group, self.identity(end), size, size) if end <= len(self.tokens) else None

    def entries(self, group, reserved):
        if group.holds_tokens:
            return group.entries(reserved)
        return group.entries(self.encoder_tokens) if reserved else 0

    def first(self, group):
        """Leading entries that were given back."""
        table = self.tables[group.number]
        return sum(block is None for block in table)

    def can_go_on_from(self, n):
        if n == 0 or n >= self.computed:
            return True
        for group in self.layout.groups:
            if group.is_state and n % group.size:
                return False
            if group.holds_tokens and any(block < self.first(group) for block in group.needed(n)):
                return False
        return True

    def drop_of(self, group, position):
        table = self.tables[group.number]
        parent = table[position - 1] if position else None
        return Drop(table[position], parent, (position + 1) * group.size, group.size)

    def shrink(self, n):
        """Lowers the room and returns the blocks beyond, deepest first, groups in order among equals."""
        wanted = min(self.reserved, n)
        self.reserved = wanted if self.can_go_on_from(wanted) else 0
        self.computed = min(self.computed, self.reserved)
        self.awaits_load = self.awaits_load if self.reserved else None
        del self.ahead[max(0, self.computed - len(self.tokens)) :]
        del self._identities[max(self.computed, len(self.tokens)) + 1 :]
        drops = []
        for group in self.layout.groups:
            number, table = group.number, self.tables[group.number]
            entries = self.entries(group, self.reserved)
            kept = range(entries, len(table))
            drops += [self.drop_of(group, i) for i in reversed(kept) if table[i] is not None]
            del table[entries:]
            if group.holds_tokens:
                self.settled[number] = min(self.settled[number], self.reserved // group.size)
        if not self.reserved:
            self.encoder_is_written = False
        return sorted(drops, key=lambda drop: -drop.depth)

    def forget(self, n):
        del self.tokens[n:]
        if n < len(self._identities):
            del self._identities[n + 1 :]
        self.media = {offset: digest for offset, digest in self.media.items() if offset < n}

    def append(self, tokens):
        """Makes tokens known; those that a step sampled must be among the first."""
        assert tokens[: len(self.ahead)] == self.ahead[: len(tokens)]
        self.tokens.extend(tokens)
        del self.ahead[: len(tokens)]

    def fork(self):
        child = ModelSequence(
            self.layout, self.identities, self.keys, self.tokens, self.media, self.tenant, self.encoder_tokens
        )
        child.encoder, child.encoder_is_written = self.encoder, self.encoder_is_written
        child.tables = [list(table) for table in self.tables]
        child.settled = list(self.settled)
        child.reserved, child.computed, child.retention = self.reserved, self.computed, self.retention
        child.ahead, child.awaits_load = list(self.ahead), self.awaits_load
        in_flight = self.reserved > self.computed
        child.shrink(0 if self.layout.has_state and in_flight else len(self.tokens))
        child.ahead.clear()
        return child
