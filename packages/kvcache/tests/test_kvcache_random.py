"""Random operations against the reference model; `--kvcache-sequences N` sets how many sequences."""

from collections import Counter

import kvcache_random_operations


def test_random_operations_agree_with_the_model(request):
    happened = Counter()
    for seed in range(request.config.getoption("kvcache_sequences", 10_000)):
        try:
            happened += kvcache_random_operations.run(seed, num_operations=12)
        except BaseException as error:
            error.add_note(f"kvcache_random_operations.run({seed}, 12) repeats this")
            raise
    assert all(happened[name] > 0 for name in ("copies", "evictions", "hits")), happened


def test_long_sequences_agree_with_the_model():
    for seed in range(20):
        kvcache_random_operations.run(seed, num_operations=200)
