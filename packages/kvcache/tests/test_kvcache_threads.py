"""Several Python threads on one cache with everything switched on: no call is torn, nothing is left over."""

import threading

import pytest
from llm_kvcache import (
    CrossAttention,
    FullAttention,
    KVCache,
    KVCacheError,
    PinQuotaExceeded,
    RecurrentState,
    SlidingWindow,
    UnknownPin,
)

CONFIGURATIONS = {
    "hybrid, host, cost": (
        [FullAttention(2), SlidingWindow(4, 6), RecurrentState(4), CrossAttention(2)],
        {"policy": "cost", "host_blocks": 40},
    ),
    "partial, host, lfu": ([FullAttention(4)], {"policy": "lfu", "host_blocks": 20, "partial_reuse": True}),
    "policy in Python": ([FullAttention(2)], {"policy": "kvcache_reference_policies:MostRecentFirst"}),
    "priorities": ([SlidingWindow(2, 5)], {"policy": "priority+ttl"}),
}


class Worker:
    """Serves prompts as an engine would, on a cache that others use too."""

    def __init__(self, cache, number, failures):
        self.cache = cache
        self.number = number
        self.failures = failures

    def run(self):
        try:
            for i in range(60):
                self.serve([self.number % 2, *[i % 5] * (3 + i % 11)], tenant=("", "a", "b")[i % 3])
                self.move()
                if i % 10 == 0:
                    self.cache.check()
        except (KVCacheError, AssertionError) as error:
            self.failures.append(error)

    def serve(self, tokens, tenant):
        seq = self.cache.open(tokens, tenant=tenant, encoder_tokens=3)
        hit = self.cache.match(seq)
        assert hit < len(tokens)
        if self.cache.grow(seq, len(tokens) - hit + 1):
            self.cache.commit(seq, len(tokens))
            self.cache.append(seq, [1])
            child = self.cache.fork(seq)
            self.cache.grow_many([seq, child], [3, 3])
            self.cache.set_retention(child, priority=self.number, ttl_s=1.0)
            self.hold(seq)
            self.cache.truncate(child, 2)
            self.cache.release(child)
        self.cache.release(seq)

    def hold(self, seq):
        try:
            pin = self.cache.pin(seq, ttl_s=5.0)
            self.cache.unpin(pin.id)
        except (PinQuotaExceeded, UnknownPin):
            pass  # others hold too much; or it ran out meanwhile

    def move(self):
        batch = self.cache.take_transfers().batch
        if batch is not None:
            assert self.cache.finish_transfers(batch) == []


@pytest.mark.parametrize(("groups", "options"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_threads_share_a_cache(groups, options):
    cache = KVCache(groups, 60, **options)
    cache.set_quota("b", 20)
    cache.set_pin_quota(15)
    failures = []
    workers = [Worker(cache, number, failures) for number in range(5)]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "a call waits for itself"
    assert not failures
    cache.check()
    stats = cache.stats()
    assert (stats.used, stats.sequences, stats.pinned) == (0, 0, 0)
    assert cache.reset_prefix_cache()
    assert cache.stats().free == 60
