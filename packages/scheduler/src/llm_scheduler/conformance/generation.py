"""Random sequences by seed: arrivals, aborts, faults, failed steps, tiny caches; knows nothing of checks."""

from __future__ import annotations

import random

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.conformance.malformed import MALFORMED
from llm_scheduler.conformance.misuse import MISUSES
from llm_scheduler.conformance.operations import (
    Abort,
    Add,
    AddMalformed,
    Land,
    LandWrongly,
    Launch,
    Operation,
    Sequence,
)
from llm_scheduler.conformance.worlds import World

_PROMPT_VOCAB = 50


def random_sequence(seed: int, policy: str = "fcfs") -> Sequence:
    """Make the sequence of a seed. Even seeds run one plan at a time, odd ones overlap two, some three."""
    rng = random.Random(seed)  # noqa: S311 - not cryptography
    world = _random_world(rng, policy, depth=1 if seed % 2 == 0 else rng.choice([2, 2, 2, 3]))
    return Sequence(name=f"seed {seed}", world=world, operations=tuple(_operations(rng, world)))


def _random_world(rng: random.Random, policy: str, depth: int) -> World:
    block_size = rng.choice([1, 2, 4])
    config = SchedulerConfig(
        max_model_len=rng.randint(8, 48),
        max_num_seqs=rng.randint(1, 5),
        max_num_batched_tokens=rng.randint(1, 24),
        policy=policy,
        max_waiting_requests=rng.choice([2, 1000]),
        max_waiting_tokens=rng.choice([40, 100_000, 100_000]),
        long_prefill_tokens=rng.choice([None, None, 3]),
        max_plans_in_flight=depth,
    )
    longest = -(-config.max_model_len // block_size)
    return World(
        config=config,
        block_size=block_size,
        num_blocks=max(1, longest + rng.choice([-1, 0, 1, 3, longest // 2, 3 * longest])),
        prefix_caching=rng.random() < 0.8,
        vocab_size=rng.choice([2, 10, 50]),
    )


def _operations(rng: random.Random, world: World) -> list[Operation]:
    prompts = [[rng.randrange(_PROMPT_VOCAB) for _ in range(world.config.max_model_len)] for _ in range(2)]
    trouble = rng.choice([0.0, 0.0, 0.15])
    operations: list[Operation] = []
    names = [f"r{index}" for index in range(8)]
    fresh = iter(names)
    for _ in range(rng.randint(8, 40)):
        if rng.random() < trouble / 2:
            picked = tuple(rng.sample([*names, "unknown"], rng.choice([1, 1, 3])))
            operations.append(Abort(picked))
        if rng.random() < 0.04:
            operations.append(_misuse(rng))
        draw = rng.random()
        if draw < 0.3:
            name = next(fresh, None) or rng.choice(names)
            operations.append(_random_add(rng, world, name, prompts))
        elif draw < 0.65:
            fails = rng.random() < trouble / 2
            operations.append(Launch(fails=fails, faulty=trouble / 4, draw=rng.randrange(1 << 30)))
        else:
            operations.append(Land(failed_first=rng.random() < 0.5))
    return operations


def _misuse(rng: random.Random) -> Operation:
    if rng.random() < 0.4:
        return AddMalformed(rng.choice(list(MALFORMED)))
    return LandWrongly(rng.choice(list(MISUSES)))


def _random_add(rng: random.Random, world: World, name: str, prompts: list[list[int]]) -> Add:
    most = world.config.max_model_len - 1
    prompt = rng.choice(prompts)[: rng.randint(1, most)]
    prompt += [rng.randrange(_PROMPT_VOCAB) for _ in range(rng.randint(0, 3))]
    max_tokens = rng.randint(1, 16)
    return Add(
        request_id=name,
        prompt=tuple(prompt[:most]),
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, max_tokens),
        stop_token_ids=frozenset(rng.sample(range(world.vocab_size), rng.randint(0, 2))),
        priority=rng.randint(0, 2),
        arrival_s=rng.choice([0.0, 0.0, 1.5]),
        tenant=rng.choice(["", "a", "b"]),
        salt=rng.choice([None, None, b"a"]),
        lora=rng.choice([None, None, None, "adapter"]),
        match_prefix=rng.random() < 0.8,
    )
