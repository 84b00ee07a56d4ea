"""Owns what each kind of group keeps, by definition: the positions that a token sees, one by one."""

from math import gcd, lcm

from llm_kvcache import ChunkedLocal, CrossAttention, RecurrentState, SlidingWindow


class ReferenceGroup:
    """One group. `size` is its block size."""

    def __init__(self, number, group):
        self.number = number
        self.size = group.block_size
        self.holds_tokens = not isinstance(group, CrossAttention)
        self.is_state = isinstance(group, RecurrentState)
        self.group = group

    def seen(self, position):
        """The positions that a token reads or writes."""
        match self.group:
            case SlidingWindow():
                return [p for p in range(position + 1) if position - p < self.group.window]
            case ChunkedLocal():
                size = self.group.chunk_size
                return [p for p in range(position + 1) if p // size == position // size]
            case RecurrentState():
                return [p for p in (position - 1, position) if p >= 0]
            case _:
                return list(range(position + 1))

    def needed(self, computed):
        """The blocks that a sequence with this many computed tokens needs to compute the next one."""
        return {p // self.size for p in self.seen(computed)}

    def entries(self, num_tokens):
        return -(-num_tokens // self.size)


class ReferenceLayout:
    def __init__(self, groups):
        self.groups = [ReferenceGroup(number, group) for number, group in enumerate(groups)]
        self.token_groups = [group for group in self.groups if group.holds_tokens]
        sizes = [group.size for group in self.token_groups]
        self.alignment = lcm(*sizes)
        self.hash_unit = gcd(*sizes)
        self.has_state = any(group.is_state for group in self.groups)

    def longest_hit(self, limit, has_block):
        """The longest aligned length up to `limit` at which each group has what the next token sees."""
        for length in range(limit - limit % self.alignment, 0, -self.alignment):
            wanted = [(g.number, b) for g in self.token_groups for b in self.blocks_of_hit(g, length)]
            if all(has_block(group, block) for group, block in wanted):
                return length
        return 0

    def blocks_of_hit(self, group, length):
        """The blocks that a hit of this length attaches in a group, shallowest first."""
        return sorted(block for block in group.needed(length) if block < length // group.size)
