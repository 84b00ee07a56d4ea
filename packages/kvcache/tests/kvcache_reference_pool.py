"""Owns the model's blocks: owners, names of contents, tenants' quotas, and who is evicted for whom.

Block ids are taken from the cache under test; the pool says whether the cache was allowed to hand them out.
"""

from llm_kvcache import BlockInfo


class ReferencePool:
    def __init__(self, num_blocks, policy, host):
        self.num_blocks = num_blocks
        self.policy = policy
        self.host = host
        self.references = dict.fromkeys(range(num_blocks), 0)
        self.names = {}  # findable block -> name of its contents
        self.index = {}  # and back
        self.starts = {}  # findable block -> (identity of what is before it, its tokens), the latest last
        self.owners = {}  # block that is not free -> tenant
        self.quotas = {}
        self.released = {}  # tenant with a quota -> its cached blocks, those released first in front
        self.evictions = 0

    def is_cached(self, block):
        return self.references[block] == 0 and block in self.names

    def cached(self):
        return [block for block in self.names if self.references[block] == 0]

    def free(self):
        return {b for b, n in self.references.items() if n == 0 and b not in self.names}

    def num_used(self):
        return sum(n > 0 for n in self.references.values())

    def num_available(self):
        return self.num_blocks - self.num_used()

    def charged(self, tenant):
        return sum(owner == tenant for owner in self.owners.values())

    def num_available_to(self, tenant):
        """How many blocks a tenant can get one after the other."""
        if tenant not in self.quotas:
            return self.num_available()
        room = self.quotas[tenant] + len(self.released[tenant]) - self.charged(tenant)
        return min(self.num_available(), max(room, 0))

    def adopt(self, block, tenant):
        """The cache handed out this block as new; it must be the one that the rules name."""
        free = self.free()
        if self.charged(tenant) >= self.quotas.get(tenant, self.num_blocks + 1):
            victim = self.released[tenant][0]
            self.policy.remove(victim)
            self.policy.forget(victim)
        elif free:
            assert block in free, f"block {block} was handed out while others were free"
            victim = None
        else:
            victim = self.policy.evict()
        if victim is not None:
            assert block == victim, f"block {block} was evicted, not {victim}"
            self.evictions += 1
            self._left_cached(block)
            self._store(block)
            self.forget_contents(block)
        self.references[block] = 1
        self.owners[block] = tenant

    def _store(self, block):
        num_tokens, size = self.names[block][2:]
        if num_tokens == size and self.host is not None:
            self.host.store(self.names[block], block)

    def _left_cached(self, block):
        if self.owners[block] in self.released:
            self.released[self.owners[block]].remove(block)

    def forget_contents(self, block):
        del self.index[self.names.pop(block)]
        self.starts.pop(block, None)

    def publish(self, name, block, start=None):
        """Makes a block findable unless its contents are known already, or it has another name."""
        if name in self.index or block in self.names:
            return
        self.index[name] = block
        self.names[block] = name
        if start is not None:
            self.starts[block] = start

    def withdraw(self, block):
        self.policy.forget(block)
        self.forget_contents(block)

    def acquire(self, block):
        if self.is_cached(block):
            self.policy.remove(block)
            self._left_cached(block)
        self.references[block] += 1

    def reuse(self, block):
        self.policy.touch(block)
        self.acquire(block)

    def drop(self, block, info: BlockInfo):
        self.references[block] -= 1
        if self.references[block]:
            return
        owner = self.owners[block]
        if block not in self.names:
            del self.owners[block]
        elif owner in self.quotas and self.charged(owner) > self.quotas[owner]:
            self.policy.forget(block)
            self._let_go(block)
        else:
            self.policy.insert(block, info)
            self.released.get(owner, []).append(block)

    def _let_go(self, block):
        self.forget_contents(block)
        del self.owners[block]
        self.evictions += 1

    def set_quota(self, tenant, quota):
        if quota is None:
            self.quotas.pop(tenant, None)
            self.released.pop(tenant, None)
            return
        self.quotas[tenant] = quota
        own = [block for block in self.policy.order() if self.owners[block] == tenant]
        cached = self.released.setdefault(tenant, own)
        while cached and self.charged(tenant) > quota:
            block = cached.pop(0)
            self.policy.remove(block)
            self.policy.forget(block)
            self._let_go(block)

    def reset(self):
        for block in list(self.names):
            self.policy.remove(block)
            self.policy.forget(block)
            self._left_cached(block)
            self.forget_contents(block)
            del self.owners[block]
