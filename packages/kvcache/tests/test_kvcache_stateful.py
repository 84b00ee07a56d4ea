"""Hypothesis drives the cache and its reference model, and shrinks what breaks them."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from kvcache_checked_cache import TENANTS, CheckedCache
from llm_kvcache import (
    POLICIES,
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    MLALatent,
    RecurrentState,
    SlidingWindow,
)

TOKENS = st.lists(st.integers(0, 1), max_size=12)
COUNTS = st.integers(0, 9)
SIZES = st.integers(1, 4)
TTLS = st.sampled_from([None, 0, 2])
GROUPS = st.one_of(
    st.builds(FullAttention, SIZES),
    st.builds(MLALatent, SIZES),
    st.builds(SlidingWindow, SIZES, st.integers(1, 7)),
    st.builds(ChunkedLocal, SIZES, st.integers(1, 7)),
    st.builds(RecurrentState, SIZES),
)


class CacheMachine(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    @initialize(
        groups=st.lists(GROUPS, min_size=1, max_size=3),
        encoder=st.none() | st.builds(CrossAttention, SIZES),
        num_blocks=st.integers(2, 16),
        policy=st.sampled_from([*POLICIES, "own"]),
        caching=st.sampled_from([True, True, True, False]),
        partial=st.booleans(),
        host_blocks=st.sampled_from([0, 0, 1, 5]),
    )
    def make(self, groups, encoder, num_blocks, policy, caching, partial, host_blocks):
        groups += [encoder] if encoder else []
        one_full = len(groups) == 1 and isinstance(groups[0], FullAttention | MLALatent)
        self.checked = CheckedCache(
            groups,
            num_blocks,
            policy,
            prefix_caching=caching,
            partial_reuse=caching and partial and one_full,
            host_blocks=host_blocks if caching else 0,
        )

    @rule(
        target=sequences,
        tokens=TOKENS,
        salt=st.sampled_from([None, b"", b"s"]),
        lora=st.sampled_from([None, "v"]),
        tenant=st.sampled_from(TENANTS),
        encoder_tokens=st.integers(0, 4),
    )
    def open(self, tokens, salt, lora, tenant, encoder_tokens):
        seq = self.checked.open(tokens, salt, lora, (), tenant, encoder_tokens)
        self.checked.match(seq)
        return seq

    @rule(seq=sequences, max_tokens=st.none() | COUNTS)
    def match(self, seq, max_tokens):
        self.checked.match(seq, max_tokens)

    @rule(seq=sequences, n=COUNTS)
    def grow(self, seq, n):
        self.checked.grow(seq, n)

    @rule(rows=st.lists(st.tuples(sequences, COUNTS), max_size=4))
    def grow_many(self, rows):
        self.checked.grow_many([seq for seq, _ in rows], [n for _, n in rows])

    @rule(rows=st.lists(st.tuples(sequences, TOKENS), max_size=3))
    def append_many(self, rows):
        self.checked.append_many([seq for seq, _ in rows], [tokens for _, tokens in rows])

    @rule(
        seqs=st.lists(sequences, max_size=4, unique=True),
        longest=st.sampled_from([1, 3, 100]),
        sampled=st.lists(st.integers(0, 1), max_size=2),
        host=st.sampled_from(["works", "works", "works later"]),
    )
    def step(self, seqs, longest, sampled, host):
        self.checked.step(seqs, longest, sampled=sampled, host=host)

    @rule()
    def finish(self):
        for batch in list(self.checked.waiting):
            self.checked.finish(batch)

    @rule(seq=sequences, n=COUNTS)
    def truncate(self, seq, n):
        self.checked.truncate(seq, n)

    @rule(seq=sequences, n=COUNTS)
    def shrink(self, seq, n):
        self.checked.shrink(seq, n)

    @rule(target=sequences, seq=sequences)
    def fork(self, seq):
        return self.checked.fork(seq)

    @rule(seq=consumes(sequences))
    def release(self, seq):
        self.checked.release(seq)

    @rule(target=sequences, seqs=st.lists(consumes(sequences), max_size=3))
    def release_many(self, seqs):
        self.checked.release_many(seqs)
        return multiple()

    @rule()
    def reset_prefix_cache(self):
        self.checked.reset_prefix_cache()

    @rule(seq=sequences, num_tokens=st.none() | COUNTS, ttl_s=TTLS)
    def pin(self, seq, num_tokens, ttl_s):
        self.checked.pin(seq, num_tokens, ttl_s)

    @rule()
    def unpin(self):
        if self.checked.pins:
            self.checked.unpin(self.checked.pins.pop())

    @rule(tenant=st.sampled_from([None, *TENANTS]), blocks=st.none() | COUNTS, pins=st.booleans())
    def set_quota(self, tenant, blocks, pins):
        if pins or tenant is None:
            self.checked.set_pin_quota(tenant, blocks)
        else:
            self.checked.set_quota(tenant, blocks)

    @rule(seq=sequences, priority=st.integers(-1, 1), ttl_s=TTLS)
    def set_retention(self, seq, priority, ttl_s):
        self.checked.set_retention(seq, priority, ttl_s)

    @rule(seconds=st.sampled_from([0, 1, 2]))
    def set_time(self, seconds):
        self.checked.set_time(self.checked.model.now_s + seconds)

    @invariant()
    def agrees(self):
        if hasattr(self, "checked"):
            self.checked.verify()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
