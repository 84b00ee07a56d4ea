"""Sequences written by hand, one for each promise that is worth reading; knows nothing of checks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

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


def scenarios(policy: str = "fcfs") -> list[Sequence]:
    """Return all scenarios, for the policy that the config shall name."""
    return [
        _scenario("one request", [_add("a", 5)], policy),
        _scenario("requests of one token", [_add("a", 1, max_tokens=1), _add("b", 1, max_tokens=1)], policy),
        _scenario("prompts longer than the budget", [_add("a", 40), _add("b", 30)], policy, batched_tokens=8),
        _scenario("answers run beside a long prompt", _answers_beside_a_prompt(), policy, batched_tokens=8),
        _scenario("a prompt that is cached", _cached_prompt(), policy),
        _scenario("a cached prompt for salts of its own", _salted_prompts(), policy),
        _scenario("more requests than blocks", [_add(name, 6, 16) for name in "abcde"], policy, num_blocks=7),
        _scenario("more requests than slots", [_add(name, 3) for name in "abcdefgh"], policy, num_seqs=2),
        _scenario("requests that stop early", _early_stops(), policy, vocab_size=2),
        _scenario("aborted while waiting and running", _aborts(), policy, num_seqs=2),
        _scenario("aborted with a step in flight", _abort_in_flight(), policy),
        _scenario("a step that raises", _failing_step(), policy),
        _scenario("a later step raises first", _later_step_fails(), policy),
        _scenario("a faulty row beside sound ones", _faulty_rows(), policy),
        _scenario(
            "a full queue", [_add(name, 3) for name in "abcde"], policy, num_seqs=1, waiting_requests=2
        ),
        _scenario("a queue full of tokens", [_add(name, 9) for name in "abcde"], policy, waiting_tokens=20),
        _scenario(
            "an id that is live already", [_add("a", 5), _add("a", 4), *_turns(2), _add("a", 3)], policy
        ),
        _scenario("an id that comes again", [_add("a", 5), *_turns(9), _add("a", 4)], policy),
        _scenario("malformed requests", [AddMalformed(kind) for kind in MALFORMED], policy, num_blocks=15),
        _scenario("results that do not fit", _misuses(), policy, batched_tokens=8),
        _scenario("one plan too many", [_add("a", 5), Launch(), Launch(), Launch(), Launch()], policy),
    ]


def _scenario(
    name: str,
    operations: Iterable[Operation],
    policy: str,
    *,
    batched_tokens: int = 64,
    num_seqs: int = 8,
    num_blocks: int = 128,
    vocab_size: int = 50,
    waiting_requests: int = 100,
    waiting_tokens: int = 10_000,
) -> Sequence:
    config = SchedulerConfig(
        max_model_len=64,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=batched_tokens,
        policy=policy,
        max_waiting_requests=waiting_requests,
        max_waiting_tokens=waiting_tokens,
        max_plans_in_flight=2,
    )
    world = World(config=config, num_blocks=num_blocks, vocab_size=vocab_size)
    return Sequence(name=f"the scenario {name!r}", world=world, operations=tuple(operations))


def _add(name: str, num_prompt_tokens: int, max_tokens: int = 6, **fields: object) -> Add:
    prompt = tuple((ord(name) * 31 + 7 * index) % 50 for index in range(num_prompt_tokens))
    return Add(request_id=name, prompt=prompt, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


def _turns(count: int) -> Iterable[Operation]:
    """Return turns of the plain loop."""
    turn: tuple[Operation, ...] = (Launch(), Land())
    return turn * count


def _overlapped_turns(count: int) -> Iterable[Operation]:
    """Return turns of the overlapped loop; one plan stays in flight."""
    return [Launch(), *_turns(count)]


def _answers_beside_a_prompt() -> list[Operation]:
    return [_add("a", 3, 20), _add("b", 3, 20), *_turns(2), _add("c", 40), *_turns(5), _add("d", 30)]


def _cached_prompt() -> list[Operation]:
    first = _add("a", 21)
    again = Add(request_id="b", prompt=first.prompt, max_tokens=6)
    whole = Add(request_id="c", prompt=first.prompt[:20], max_tokens=6)
    uncached = Add(request_id="d", prompt=first.prompt, max_tokens=6, match_prefix=False)
    return [first, *_turns(10), again, *_turns(3), whole, uncached, *_turns(3)]


def _salted_prompts() -> list[Operation]:
    prompt = _add("a", 20).prompt
    salts = (None, b"one", b"two", b"one")
    adds = [Add(request_id=f"r{i}", prompt=prompt, salt=salt) for i, salt in enumerate(salts)]
    adds.append(Add(request_id="adapter", prompt=prompt, lora="adapter"))
    return list(chain.from_iterable((add, *_turns(6)) for add in adds))


def _early_stops() -> list[Operation]:
    stop = frozenset({0})
    adds = [
        _add(name, 4, 12, stop_token_ids=stop, min_tokens=n)
        for name, n in zip("abc", (0, 3, 12), strict=True)
    ]
    return [*adds, *_overlapped_turns(14)]


def _aborts() -> list[Operation]:
    adds = [_add(name, 10, 10) for name in "abcd"]
    return [*adds, Abort(("d", "unknown", "d")), *_turns(2), Abort(("a", "c")), *_turns(2), Abort(("a", "b"))]


def _abort_in_flight() -> list[Operation]:
    return [
        _add("a", 10, 20),
        _add("b", 10, 20),
        *_overlapped_turns(2),
        Abort(("a",)),
        _add("c", 9),
        *_turns(4),
    ]


def _failing_step() -> list[Operation]:
    again = Add(request_id="b", prompt=_add("a", 21).prompt)
    return [_add("a", 21), Launch(fails=True), Land(), again, *_turns(2), Launch(fails=True), Land()]


def _later_step_fails() -> list[Operation]:
    adds: list[Operation] = [_add("a", 9, 12), _add("b", 9, 12)]
    return [
        *adds,
        *_turns(1),
        Launch(),
        Launch(fails=True),
        Land(failed_first=True),
        Land(),
        _add("c", 5),
        *_turns(3),
    ]


def _faulty_rows() -> list[Operation]:
    adds: list[Operation] = [_add(name, 9, 12) for name in "abcd"]
    again = Add(request_id="e", prompt=_add("a", 9).prompt)
    return [*adds, *_overlapped_turns(2), Launch(faulty=0.5, draw=3), Land(), again, *_turns(3)]


def _misuses() -> list[Operation]:
    wrong = [LandWrongly(kind) for kind in MISUSES]
    return [_add("a", 3, 12), _add("b", 30), *_turns(1), Launch(), *wrong, Launch(), *wrong, Land(), Land()]
