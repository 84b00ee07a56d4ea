"""Hypothesis drives the cache and its reference model, and shrinks what breaks them."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from kvcache_checked_cache import CheckedCache

TOKENS = st.lists(st.integers(0, 1), max_size=12)
COUNTS = st.integers(0, 9)


class CacheMachine(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    @initialize(
        block_size=st.integers(1, 4), num_blocks=st.integers(2, 10), caching=st.booleans() | st.just(True)
    )
    def make(self, block_size, num_blocks, caching):
        self.checked = CheckedCache(block_size, num_blocks, caching)

    @rule(
        target=sequences,
        tokens=TOKENS,
        salt=st.sampled_from([None, b"", b"s"]),
        lora=st.sampled_from([None, "v"]),
    )
    def open(self, tokens, salt, lora):
        seq = self.checked.open(tokens, salt, lora)
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

    @rule(seqs=st.lists(sequences, max_size=4, unique=True), longest=st.sampled_from([1, 3, 100]))
    def step(self, seqs, longest):
        self.checked.step(seqs, longest)

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

    @invariant()
    def agrees(self):
        if hasattr(self, "checked"):
            self.checked.verify()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
