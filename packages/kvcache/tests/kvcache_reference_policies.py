"""Owns naive eviction policies: each looks at all cached blocks at each eviction.

They have the methods of `llm_kvcache.EvictionPolicy`, `touch`, `forget` and `set_time` included.
"""

from math import inf

from llm_kvcache import BlockInfo


class _Naive:
    """Keeps, for each cached block, what is known about it and when it was last used."""

    def __init__(self, num_blocks=0):
        self.cached: dict[int, BlockInfo] = {}
        self.used: dict[int, int] = {}
        self.reuses: dict[int, int] = {}
        self.uses = 0
        self.now_s = -inf

    def _use(self, block):
        self.uses += 1
        self.used[block] = self.uses

    def insert(self, block, info):
        assert block not in self.cached
        self.cached[block] = info
        self._use(block)

    def touch(self, block):
        self.reuses[block] = self.reuses.get(block, 0) + 1
        if block in self.cached:
            self._use(block)

    def remove(self, block):
        del self.cached[block]

    def forget(self, block):
        assert block not in self.cached
        self.reuses[block] = 0

    def set_time(self, now_s):
        self.now_s = now_s

    def key(self, block):
        raise NotImplementedError

    def candidates(self, cached):
        return cached

    def order(self):
        rest, order = dict(self.cached), []
        while rest:
            order.append(min(self.candidates(rest), key=self.key))
            del rest[order[-1]]
        return order

    def evict(self):
        block = self.order()[0]
        del self.cached[block]
        self.reuses[block] = 0
        return block


class _LeavesFirst(_Naive):
    """Evicts a block after the cached blocks that name it as their parent."""

    def candidates(self, cached):
        parents = {info.parent for info in cached.values()}
        return [block for block in cached if block not in parents] or cached


class NaiveLru(_Naive):
    def key(self, block):
        return self.used[block]


class NaiveLfu(_Naive):
    """Least often used, aged by the key of the last victim."""

    def __init__(self, num_blocks=0):
        super().__init__()
        self.age = 0
        self.keys: dict[int, int] = {}

    def _use(self, block):
        super()._use(block)
        self.keys[block] = self.age + 1 + min(self.reuses.get(block, 0), 254)

    def key(self, block):
        return self.keys[block], self.used[block]

    def evict(self):
        block = super().evict()
        self.age = self.keys[block]
        return block


class NaivePriorityTtl(_LeavesFirst):
    """Expired, then of the lowest priority, then least recently used."""

    def key(self, block):
        info = self.cached[block]
        expired = info.expires_at is not None and info.expires_at <= self.now_s
        return not expired, info.priority, self.used[block]


class NaiveCost(_LeavesFirst):
    """GreedyDual-Size-Frequency with blocks of one size."""

    def __init__(self, num_blocks=0):
        super().__init__()
        self.inflation = 0.0
        self.values: dict[int, float] = {}

    def _use(self, block):
        super()._use(block)
        self.values[block] = self.inflation + (1 + self.reuses.get(block, 0)) * self.cached[block].cost

    def key(self, block):
        return self.values[block], self.used[block]

    def evict(self):
        block = super().evict()
        self.inflation = max(self.inflation, self.values[block])
        return block


class MostRecentFirst(_Naive):
    """A policy of one's own, handed to both the cache and the model; it writes down all that it is told."""

    def __init__(self, num_blocks=0):
        super().__init__()
        self.heard: list[tuple] = []

    def key(self, block):
        return -self.used[block]

    def insert(self, block, info):
        self.heard.append(("insert", block, info))
        super().insert(block, info)

    def touch(self, block):
        self.heard.append(("touch", block))
        super().touch(block)

    def remove(self, block):
        self.heard.append(("remove", block))
        super().remove(block)

    def forget(self, block):
        self.heard.append(("forget", block))
        super().forget(block)

    def evict(self):
        block = super().evict()
        self.heard.append(("evict", block))
        return block


NATIVE = {"lru": NaiveLru, "lfu": NaiveLfu, "priority+ttl": NaivePriorityTtl, "cost": NaiveCost}
"""The naive counterpart of each native policy."""
