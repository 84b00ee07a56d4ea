"""Random operations against the reference model; `--kvcache-sequences N` sets how many sequences."""

from collections import Counter

import kvcache_random_operations
from llm_kvcache import POLICIES


def _run(seed, num_operations):
    try:
        return kvcache_random_operations.run(seed, num_operations)
    except BaseException as error:
        error.add_note(f"kvcache_random_operations.run({seed}, {num_operations}) repeats this")
        raise


def test_random_operations_agree_with_the_model(request):
    happened = Counter()
    for seed in range(request.config.getoption("kvcache_sequences", 1_000)):
        happened += _run(seed, 20)
    wanted = ["copies", "stores", "loads", "evictions", "hits", "host hits", "own", *POLICIES]
    assert all(happened[name] > 0 for name in wanted), happened


def test_long_sequences_agree_with_the_model():
    for seed in range(20):
        _run(seed, 200)
