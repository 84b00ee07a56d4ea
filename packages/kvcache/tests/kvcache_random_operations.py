"""Owns seeded random operation sequences over a checked cache: the same seed gives the same operations.

Few token ids, small blocks and a small pool, so that hits, evictions, copies and refusals all happen.
"""

from collections import Counter
from random import Random

from kvcache_checked_cache import CheckedCache


def _tokens(random, longest):
    return [random.randrange(2) for _ in range(random.randint(0, longest))]


def _open(random, checked):
    tokens = _tokens(random, 14)
    media = [(random.randrange(len(tokens)), b"image")] if tokens and random.random() < 0.3 else []
    seq = checked.open(
        tokens, random.choice([None, None, None, b"salt"]), random.choice([None, None, "v1"]), media
    )
    if random.random() < 0.8:
        checked.match(seq, random.choice([None, None, random.randint(0, 12)]))
    checked.grow(seq, random.randint(0, 8))


def _grow_many(random, checked):
    seqs = random.choices(checked.live, k=random.randint(1, 4))
    checked.grow_many(seqs, [random.randint(0, 6) for _ in seqs])


def _append_many(random, checked):
    seqs = random.choices(checked.live, k=random.randint(0, 3))
    checked.append_many(seqs, [_tokens(random, 4) for _ in seqs])


def _some(random, checked):
    return random.sample(checked.live, random.randint(0, len(checked.live)))


OPERATIONS = {
    "open": (3, _open),
    "match": (1, lambda random, c: c.match(random.choice(c.live))),
    "grow": (3, lambda random, c: c.grow(random.choice(c.live), random.randint(0, 9))),
    "grow_many": (3, _grow_many),
    "append": (2, lambda random, c: c.append(random.choice(c.live), _tokens(random, 5))),
    "append_many": (2, _append_many),
    "step": (5, lambda random, c: c.step(_some(random, c), random.choice([1, 3, 100]))),
    "overcommit": (1, lambda random, c: c.commit(random.choice(c.live), 1000)),
    "truncate": (2, lambda random, c: c.truncate(random.choice(c.live), random.randint(0, 16))),
    "shrink": (2, lambda random, c: c.shrink(random.choice(c.live), random.randint(0, 16))),
    "fork": (2, lambda random, c: c.fork(random.choice(c.live))),
    "release": (1, lambda random, c: c.release(random.choice(c.live))),
    "release_many": (1, lambda random, c: c.release_many(_some(random, c))),
    "reset": (1, lambda random, c: c.reset_prefix_cache()),
}


def run(seed: int, num_operations: int) -> Counter:
    """Runs one sequence, verified after each operation, and counts what happened in it."""
    random = Random(seed)
    checked = CheckedCache(random.choice([1, 2, 3, 4]), random.randint(3, 14), random.random() < 0.95)
    happened: Counter = Counter()
    names = list(OPERATIONS)
    weights = [OPERATIONS[name][0] for name in names]
    for name in random.choices(names, weights, k=num_operations):
        _, operation = OPERATIONS["open" if not checked.live else name]
        operation(random, checked)
        checked.verify()
        happened["copies"] += len(checked.model.copies)
    happened.update(evictions=checked.model.evictions, hits=checked.model.hits)
    checked.release_many(checked.live)
    checked.verify()
    assert checked.cache.stats().used == 0
    return happened
