"""Owns seeded random operation sequences over a checked cache: the same seed gives the same operations.

Few token ids, small blocks and a small pool, so that hits, evictions, copies and refusals all happen.
"""

from collections import Counter
from random import Random

from kvcache_checked_cache import TENANTS, CheckedCache
from kvcache_reference_policies import NATIVE
from llm_kvcache import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    MLALatent,
    RecurrentState,
    SlidingWindow,
)


def _group(random):
    size = random.randint(1, 4)
    kinds = [
        lambda: FullAttention(size),
        lambda: MLALatent(size),
        lambda: SlidingWindow(size, random.randint(1, 8)),
        lambda: ChunkedLocal(size, random.randint(1, 8)),
        lambda: RecurrentState(size),
    ]
    return random.choices(kinds, (2, 1, 3, 2, 2))[0]()


def _configuration(random):
    groups = [random.choice([FullAttention, MLALatent])(random.randint(1, 4))]
    if random.random() < 0.6:
        groups = [_group(random) for _ in range(random.choice([1, 1, 2, 2, 3]))]
        if random.random() < 0.25:
            groups.insert(random.randint(0, len(groups)), CrossAttention(random.randint(1, 3)))
    prefix_caching = random.random() < 0.95
    one_full = len(groups) == 1 and isinstance(groups[0], FullAttention | MLALatent)
    return {
        "groups": groups,
        "num_blocks": random.randint(3, 8 + 6 * len(groups)),
        "policy": random.choice([*NATIVE, "lru", "own"]),
        "prefix_caching": prefix_caching,
        "partial_reuse": one_full and prefix_caching and random.random() < 0.5,
        "host_blocks": random.choice([0, random.randint(1, 8)]) if prefix_caching else 0,
    }


def _tokens(random, longest):
    return [random.randrange(2) for _ in range(random.randint(0, longest))]


def _prompt(random, checked):
    """Often the start of an earlier one."""
    if checked.prompts and random.random() < 0.6:
        earlier = random.choice(checked.prompts)
        tokens = earlier[: random.randint(0, len(earlier))] + _tokens(random, 3)
    else:
        tokens = _tokens(random, 14)
    checked.prompts.append(tokens)
    return tokens


def _one(random, checked):
    return random.choice(checked.live)


def _some(random, checked):
    return random.sample(checked.live, random.randint(0, len(checked.live)))


def _ttl(random):
    return random.choice([None, None, 0, 1, 2.5])


def _open(random, c):
    tokens = _prompt(random, c)
    media = [(random.randrange(len(tokens)), b"image")] if tokens and random.random() < 0.2 else []
    salt, lora = random.choice([None] * 4 + [b"salt"]), random.choice([None] * 4 + ["v1"])
    seq = c.open(tokens, salt, lora, media, random.choice(TENANTS), random.randint(0, 5))
    if random.random() < 0.2:
        c.set_retention(seq, random.randint(-1, 1), _ttl(random))
    if random.random() < 0.8:
        c.match(seq, random.choice([None, None, random.randint(0, 12)]))
    if random.random() < 0.8:
        c.grow(seq, random.randint(0, 8))


def _serve(random, c):
    """A prompt as an engine runs it: matched, grown, computed in one step, and perhaps released."""
    seq = c.open(_prompt(random, c), tenant=random.choice(TENANTS), encoder_tokens=random.randint(0, 5))
    c.match(seq)
    if c.grow(seq, max(0, c.cache.num_tokens(seq) - c.cache.num_reserved(seq))):
        c.step([seq], 100)
    if random.random() < 0.8:
        c.release(seq)


def _hesitate(random, c):
    """A hit that is given up in part or whole before its transfers were made."""
    seq = c.open(_prompt(random, c))
    c.match(seq)
    random.choice([c.truncate, c.shrink])(seq, random.randint(0, 8))
    random.choice([c.release, c.fork, lambda seq: c.grow(seq, 3)])(seq)


def _grow_many(random, c):
    seqs = random.choices(c.live, k=random.randint(1, 4))
    c.grow_many(seqs, [random.randint(0, 6) for _ in seqs])


def _append_many(random, c):
    seqs = random.choices(c.live, k=random.randint(0, 3))
    c.append_many(seqs, [_tokens(random, 4) for _ in seqs])


def _step(random, c):
    sampled = _tokens(random, 3) if random.random() < 0.3 else []
    host = random.choice(["works", "works", "works later", "fails later"])
    c.step(_some(random, c), random.choice([1, 3, 100]), sampled=sampled, host=host)


def _finish(random, c):
    if c.waiting:
        c.finish(random.choice(list(c.waiting)), random.random() < 0.5)


def _set_quota(random, c):
    c.set_quota(random.choice(TENANTS), random.choice([None, None, random.randint(0, 12)]))


def _set_pin_quota(random, c):
    c.set_pin_quota(random.choice([None, *TENANTS]), random.choice([None, random.randint(0, 9)]))


OPERATIONS = {
    "open": (4, _open),
    "serve": (8, _serve),
    "hesitate": (1, _hesitate),
    "match": (1, lambda random, c: c.match(_one(random, c))),
    "grow": (3, lambda random, c: c.grow(_one(random, c), random.randint(0, 9))),
    "grow_many": (3, _grow_many),
    "append": (2, lambda random, c: c.append(_one(random, c), _tokens(random, 5))),
    "append_many": (2, _append_many),
    "step": (6, _step),
    "finish": (2, _finish),
    "overcommit": (0.5, lambda random, c: c.overcommit(_one(random, c), 1000)),
    "truncate": (2, lambda random, c: c.truncate(_one(random, c), random.randint(0, 16))),
    "shrink": (2, lambda random, c: c.shrink(_one(random, c), random.choice([0, random.randint(0, 16)]))),
    "fork": (2, lambda random, c: c.fork(_one(random, c))),
    "release": (2, lambda random, c: c.release(_one(random, c))),
    "release_many": (1.5, lambda random, c: c.release_many(_some(random, c))),
    "reset": (0.5, lambda random, c: c.reset_prefix_cache()),
    "quota": (1, _set_quota),
    "pin_quota": (0.5, _set_pin_quota),
    "retain": (1, lambda random, c: c.set_retention(_one(random, c), random.randint(-2, 2), _ttl(random))),
    "time": (1, lambda random, c: c.set_time(c.model.now_s + random.choice([0, 0.5, 1, 3]))),
    "pin": (1.5, lambda random, c: c.pin(_one(random, c), random.choice([None, 3, 8, 20]), _ttl(random))),
    "unpin": (1, lambda random, c: c.pins and c.unpin(random.choice(c.pins))),
}


def run(seed: int, num_operations: int) -> Counter:
    """Runs one sequence, verified after each operation, and counts what happened in it."""
    random = Random(seed)
    configuration = _configuration(random)
    checked = CheckedCache(**configuration)
    checked.prompts = []
    happened: Counter = Counter()
    names = list(OPERATIONS)
    weights = [OPERATIONS[name][0] for name in names]
    for name in random.choices(names, weights, k=num_operations):
        _, operation = OPERATIONS[name if checked.live or name in ("serve", "quota", "time") else "open"]
        operation(random, checked)
        checked.verify()
    happened.update(checked.happened)
    happened.update(evictions=checked.model.pool.evictions, hits=checked.model.hits)
    happened["host hits"] = checked.model.host_hits
    happened[configuration["policy"]] = 1
    happened.update({type(group).__name__ for group in configuration["groups"]})
    checked.close()
    return happened
