"""The core's two loops with the real scheduler and cache: same tokens, faults stay local, nothing leaks.

The worker's next token is arithmetic on the tokens before it. It reads its tokens only from the table that
the plans fill, so a wrong plan gives wrong tokens.
"""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from llm_distributed import InProcessExecutor, ReadyResult
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.messages import Abort, AddRequest, CoreInfo
from llm_engine.errors import EngineDead
from llm_engine.worker.row_params import RowParams
from llm_kvcache import FullAttention, InvariantError, KVCache
from llm_scheduler import Ragged, SchedulerConfig, StepPlan, StepResult, TokenBudgetScheduler

pytestmark = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])


VOCAB_SIZE = 997


def next_token(token_ids: Sequence[int]) -> int:
    return (31 * sum(token_ids) + 7 * len(token_ids)) % VOCAB_SIZE


def expected_tokens(prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class ArithmeticWorker:
    """The payload's seed chooses a fault: 1 in the row, 2 in the step, 3 on waiting for it."""

    def __init__(self, mesh: object) -> None:
        self.tables: dict[int, list[int]] = {}
        self.seeds: dict[int, int] = {}

    def execute(self, plan: StepPlan) -> "ReadyResult | _Raising":
        for slot in plan.released.tolist():
            self.tables.pop(slot, None)
        for row in plan.admitted:
            self.tables[row.slot] = row.token_ids.tolist()
            self.seeds[row.slot] = row.payload.seed
        seeds = [self.seeds[slot] for slot in plan.slots.tolist()]
        if 2 in seeds:
            raise RuntimeError("a step that raises")
        tokens = [self._run_row(plan, row) for row in range(plan.num_rows)]
        if 3 in seeds:
            return _Raising()
        faults = {row: "a faulty row" for row, seed in enumerate(seeds) if seed == 1}
        return ReadyResult(StepResult(plan.step_id, Ragged.from_rows(tokens), faults=faults))

    def step_counts(self) -> dict[str, int]:
        return {"graph": 0, "eager": 0}

    def _run_row(self, plan: StepPlan, row: int) -> list[int]:
        table = self.tables[int(plan.slots[row])]
        end = int(plan.num_computed[row] + plan.num_tokens[row])
        assert end <= len(table), "a row runs past its known tokens"
        if not plan.samples[row]:
            return []
        assert end == len(table), "a row samples before its last token"
        table.append(next_token(table))
        return [table[-1]]


class _Raising:
    def done(self) -> bool:
        return True

    def result(self) -> StepResult:
        raise RuntimeError("a result that raises")


def prompt_bytes(prompt: Sequence[int]) -> bytes:
    return np.asarray(prompt, "<i4").tobytes()


def make_core(overlap, *, num_blocks=64, max_num_seqs=8, budget=16, **limits):
    cache = KVCache([FullAttention(block_size=4)], num_blocks)
    config = SchedulerConfig(
        max_model_len=128, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, **limits
    )
    executor = InProcessExecutor(ArithmeticWorker)
    executor.start()
    info = CoreInfo(
        tokenizer_path=None,
        max_model_len=128,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=[],
        num_blocks=num_blocks,
        block_size=4,
        device="cpu",
        dtype="none",
        overlap=overlap,
        prefix_caching=True,
    )
    return EngineCore(TokenBudgetScheduler(config, cache), cache, executor, info)


def request(request_id, prompt, max_tokens=8, *, seed=0, stop=()):
    return AddRequest(
        request_id=request_id,
        token_ids=prompt_bytes(prompt),
        max_tokens=max_tokens,
        min_tokens=0,
        stop_token_ids=list(stop),
        priority=0,
        match_prefix=True,
        params=RowParams(seed=seed),
    )


def run(core, *, limit=2000):
    """Step until idle; returns rows and refusals by request."""
    tokens, ends, refusals = {}, {}, {}
    for _ in range(limit):
        if not core.has_work():
            return tokens, ends, refusals
        outputs = core.step()
        for row in outputs.rows:
            tokens.setdefault(row.request_id, []).extend(row.tokens)
            if row.finish_reason is not None:
                assert row.request_id not in ends
                ends[row.request_id] = row
        refusals.update((refusal.request_id, refusal) for refusal in outputs.refusals)
    raise AssertionError("the core does not come to rest")


def assert_idle(core):
    stats = core.stats(check_cache=True)
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
    assert stats.kv_blocks_free + stats.kv_blocks_cached == stats.kv_blocks_total


def test_a_cache_that_contradicts_itself_is_told(overlap, monkeypatch):
    def broken(self):
        raise InvariantError("a block is free and in use")

    core = make_core(overlap, num_blocks=4)
    monkeypatch.setattr(KVCache, "check", broken)
    core.stats()
    with pytest.raises(InvariantError, match="free and in use"):
        core.stats(check_cache=True)


def test_tokens_of_random_requests(overlap):
    rng = random.Random(0)
    core = make_core(overlap, num_blocks=24)  # too few for all: some are preempted
    prompts = {str(i): rng.choices(range(VOCAB_SIZE), k=rng.randrange(1, 40)) for i in range(30)}
    lengths = {name: rng.randrange(1, 30) for name in prompts}
    core.intake([request(name, prompt, lengths[name]) for name, prompt in prompts.items()])
    tokens, ends, refusals = run(core)
    assert not refusals
    assert tokens == {name: expected_tokens(prompt, lengths[name]) for name, prompt in prompts.items()}
    assert {row.finish_reason for row in ends.values()} == {"length"}
    assert core.stats().preemptions > 0
    assert_idle(core)


def test_a_stop_token_ends_the_request(overlap):
    core = make_core(overlap)
    expected = expected_tokens([1, 2, 3], 8)
    core.intake([request("a", [1, 2, 3], 8, stop=[expected[4]])])
    tokens, ends, _ = run(core)
    assert tokens["a"] == expected[: expected.index(expected[4]) + 1]
    assert (ends["a"].finish_reason, ends["a"].stop_token) == ("stop", expected[4])
    assert_idle(core)


def test_a_second_request_finds_the_first_ones_prompt(overlap):
    core = make_core(overlap)
    for name in ("a", "b"):
        core.intake([request(name, range(1, 14))])
        _, ends, _ = run(core)
        assert ends[name].num_cached_tokens == (0 if name == "a" else 12)


def test_abort_frees_blocks_within_a_step(overlap):
    core = make_core(overlap)
    core.intake([request("a", [1] * 20, 100), request("b", [2] * 20, 100)])
    for _ in range(6):
        core.step()
    core.intake([Abort(["a", "unknown"])])
    outputs = core.step()
    assert "a" not in [row.request_id for row in outputs.rows]
    assert core.stats().running == 1
    core.intake([Abort(["b"])])
    core.step()
    assert_idle(core)
    assert core.stats().requests_finished["abort"] == 2


@pytest.mark.parametrize("seed", [2, 3], ids=["on submit", "on waiting"])
def test_a_step_that_raises_ends_only_its_requests(overlap, seed, caplog):
    core = make_core(overlap)
    core.intake([request("bad", [5, 6, 7], seed=seed)])
    _, ends, _ = run(core)
    assert ends["bad"].finish_reason == "error"
    assert "raises" in ends["bad"].error
    assert core.stats().failed_steps >= 1
    assert "step 0 failed" in caplog.text
    core.intake([request("good", [5, 6, 7])])
    tokens, _, _ = run(core)
    assert tokens["good"] == expected_tokens([5, 6, 7], 8)
    assert_idle(core)


def test_a_faulty_row_ends_only_its_request(overlap):
    core = make_core(overlap)
    core.intake([request("good", [9, 8], 20), request("bad", [5, 6, 7], seed=1)])
    tokens, ends, _ = run(core)
    assert (ends["bad"].finish_reason, ends["bad"].error) == ("error", "a faulty row")
    assert tokens["good"] == expected_tokens([9, 8], 20)
    assert_idle(core)


def test_steps_that_only_fail_end_the_core(overlap, caplog):
    core = make_core(overlap)
    core.intake([request(str(index), [index], 1, seed=2) for index in range(100)])
    with pytest.raises(EngineDead, match="in a row"):
        run(core)


def test_refusals_are_told_with_the_next_step(overlap):
    core = make_core(overlap, max_num_seqs=1, max_waiting_requests=2, num_blocks=8)
    core.intake([request("a", [1]), request("a", [1]), request("huge", [1] * 60, 60), request("b", [2])])
    core.intake([request("c", [3]), request("d", [4])])
    tokens, _, refusals = run(core)
    assert refusals["a"].field == "request_id"
    assert "block" in refusals["huge"].message
    assert any(refusal.retry_after_s is not None for refusal in refusals.values())
    assert tokens["a"] == expected_tokens([1], 8)
    assert core.stats().requests_refused == len(refusals)
    assert_idle(core)


def test_host_and_wait_time_are_counted(overlap):
    core = make_core(overlap)
    core.intake([request("a", [1, 2, 3])])
    run(core)
    stats = core.stats()
    assert stats.steps == 8
    assert (stats.generated_tokens, stats.prompt_tokens) == (8, 3)
    assert stats.host_ms_per_step > 0
