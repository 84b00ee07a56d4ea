"""A worker that checks everything a plan promises, and a loop that drives a scheduler with it.

It knows the scheduler only through plans: token tables, block tables and KV contents are rebuilt from them.
The KV of a position is a digest of all tokens up to it, and a sampled token is a function of the last digest.
So a lost, doubled or reordered token, a stale prefix hit or a block with two writers changes what a request
yields, or fails a check here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from llm_scheduler import NewRow, Ragged, Request, RowOutput, Scheduler, StepPlan, StepResult

_PRIME = (1 << 61) - 1
_GARBAGE = -1


def extend_digest(digest: int, token: int) -> int:
    return (digest * 1_000_003 + token + 1) % _PRIME


def first_digest(salt: bytes | None, lora: str | None) -> int:
    digest = 7
    for byte in (salt or b"") + b"|" + (lora or "").encode():
        digest = extend_digest(digest, byte)
    return digest


@dataclass(frozen=True)
class TokenRule:
    """Which token follows a prefix."""

    vocab_size: int = 50

    def next_token(self, digest: int) -> int:
        return digest % self.vocab_size

    def expected(self, request: Request, max_model_len: int) -> tuple[list[int], str]:
        """The outputs and finish reason of a request that runs undisturbed, from its fields alone."""
        digest = first_digest(request.salt, request.lora)
        for token in np.asarray(request.token_ids).tolist():
            digest = extend_digest(digest, token)
        outputs: list[int] = []
        while True:
            outputs.append(self.next_token(digest))
            if outputs[-1] in request.stop_token_ids and len(outputs) > request.min_tokens:
                return outputs, "stop"
            if len(outputs) == request.max_tokens or len(request.token_ids) + len(outputs) == max_model_len:
                return outputs, "length"
            digest = extend_digest(digest, outputs[-1])


@dataclass
class SlotView:
    """What a worker knows of one slot."""

    request_id: str
    limit: int
    tokens: list[int]
    digests: list[int]
    blocks: list[int] = field(default_factory=list)
    num_computed: int = -1
    is_poisoned: bool = False


class SimulatedWorker:
    """Executes plans in order. ``NewRow.payload`` must be the request."""

    def __init__(
        self, num_slots: int, num_blocks: int, block_size: int, max_model_len: int, rule: TokenRule
    ) -> None:
        self._num_slots = num_slots
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._rule = rule
        self._kv = np.full(num_blocks * block_size, _GARBAGE, np.int64)
        self._num_blocks = num_blocks
        self._next_step = 0
        self.views: dict[int, SlotView] = {}

    def execute(self, plan: StepPlan, fault_rows: Collection[int] = ()) -> StepResult:
        """Run a plan. Rows in ``fault_rows`` write garbage, as a crash half way would."""
        self._check_shape(plan)
        self._apply(plan)
        self._check_writers(plan)
        tokens = [self._run_row(plan, row, row in fault_rows) for row in range(plan.num_rows)]
        faults = {row: f"fault in row {row}" for row in fault_rows}
        return StepResult(plan.step_id, Ragged.from_rows(tokens), faults=faults)

    def _check_shape(self, plan: StepPlan) -> None:
        assert plan.step_id == self._next_step
        self._next_step += 1
        for array in (plan.slots, plan.num_tokens, plan.num_computed, plan.released, plan.transfers):
            assert array.dtype == np.int32
        assert plan.samples.dtype == np.bool_
        rows = plan.num_rows
        assert rows > 0
        assert (
            len(plan.num_tokens)
            == len(plan.num_computed)
            == len(plan.samples)
            == len(plan.new_blocks[0])
            == rows
        )
        assert len(set(plan.slots.tolist())) == rows, "a slot has two rows"
        assert (plan.num_tokens >= 1).all()
        single = plan.num_tokens == 1
        assert not (single[1:] & ~single[:-1]).any(), "rows with one token come first"

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.released.tolist():
            del self.views[slot]
        for new in plan.admitted:
            assert 0 <= new.slot < self._num_slots
            assert new.slot not in self.views, "an occupied slot was given away"
            self.views[new.slot] = _view_of(new, self._max_model_len)
        for row, slot in enumerate(plan.slots.tolist()):
            view = self.views[slot]
            view.blocks.extend(plan.new_blocks[0].row(row).tolist())
            if view.num_computed < 0:
                view.num_computed = int(plan.num_computed[row])
        assert not len(plan.transfers)

    def _check_writers(self, plan: StepPlan) -> None:
        holders = np.zeros(self._num_blocks, np.int64)
        for view in self.views.values():
            assert len(set(view.blocks)) == len(view.blocks)
            holders[view.blocks] += 1
        for row, slot in enumerate(plan.slots.tolist()):
            start = int(plan.num_computed[row])
            end = start + int(plan.num_tokens[row])
            blocks = self.views[slot].blocks
            assert len(blocks) * self._block_size >= end, "a row has too few blocks"
            written = blocks[start // self._block_size : -(-end // self._block_size)]
            assert (holders[written] == 1).all(), "a block that is written belongs to two rows"

    def _run_row(self, plan: StepPlan, row: int, is_faulty: bool) -> list[int]:
        view = self.views[int(plan.slots[row])]
        start, count = int(plan.num_computed[row]), int(plan.num_tokens[row])
        assert start == view.num_computed, "positions of a slot are not contiguous"
        end = start + count
        view.is_poisoned |= is_faulty
        drafts = [] if plan.drafts is None else plan.drafts.row(row).tolist()
        if drafts:
            assert count == 1 + len(drafts), "a row with drafts computes something else too"
            assert end - len(drafts) == len(view.tokens), "drafts follow a token that is not the last known"
            assert plan.samples[row]
            return self._check_drafts(view, start, drafts)
        assert end <= len(view.tokens), "a token is computed before it is known"
        assert bool(plan.samples[row]) == (end == len(view.tokens))
        self._compute(view, start, view.digests[start + 1 : end + 1])
        view.num_computed = end
        if not plan.samples[row]:
            return []
        assert end < view.limit, "a row runs past its end"
        token = self._rule.next_token(view.digests[end])
        view.tokens.append(token)
        view.digests.append(extend_digest(view.digests[-1], token))
        return [token]

    def _compute(self, view: SlotView, start: int, digests: list[int]) -> None:
        """Read the KV before ``start`` and write that of the positions from there."""
        positions = np.arange(start + len(digests))
        places = np.array(view.blocks)[positions // self._block_size] * self._block_size
        places += positions % self._block_size
        if view.is_poisoned:
            self._kv[places[start:]] = _GARBAGE
            return
        assert self._kv[places[:start]].tolist() == view.digests[1 : start + 1], (
            "stale or foreign KV was read"
        )
        self._kv[places[start:]] = digests

    def _check_drafts(self, view: SlotView, start: int, drafts: list[int]) -> list[int]:
        """Compute the last known token and the drafts; accept those that the rule would have yielded."""
        digests = view.digests[start + 1 : start + 2]
        for token in drafts:
            digests.append(extend_digest(digests[-1], token))
        self._compute(view, start, digests)
        accepted: list[int] = []
        for digest, draft in zip(digests, [*drafts, None], strict=True):
            accepted.append(self._rule.next_token(digest))
            view.tokens.append(accepted[-1])
            view.digests.append(extend_digest(view.digests[-1], accepted[-1]))
            if accepted[-1] != draft:
                break
        view.num_computed = start + len(accepted)
        return accepted

    def propose(self, plan: StepPlan, num_tokens: Callable[[], int], is_right: Callable[[], bool]) -> Ragged:
        """Propose tokens to follow those of each row, right ones or wrong ones; call it after ``execute``."""
        rows: list[list[int]] = []
        for slot, samples in zip(plan.slots.tolist(), plan.samples.tolist(), strict=True):
            digest = self.views[slot].digests[-1]
            row: list[int] = []
            for _ in range(num_tokens() if samples else 0):
                row.append(self._rule.next_token(digest) + (not is_right()))
                digest = extend_digest(digest, row[-1])
            rows.append(row)
        return Ragged.from_rows(rows)


def _view_of(new: NewRow, max_model_len: int) -> SlotView:
    request = new.payload
    assert isinstance(request, Request)
    assert new.num_prompt_tokens == len(request.token_ids)
    tokens = new.token_ids.tolist()
    assert tokens[: new.num_prompt_tokens] == np.asarray(request.token_ids).tolist()
    digests = [first_digest(request.salt, request.lora)]
    for token in tokens:
        digests.append(extend_digest(digests[-1], token))
    limit = min(new.num_prompt_tokens + request.max_tokens, max_model_len)
    return SlotView(new.request_id, limit, tokens, digests)


@dataclass
class Finished:
    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    stop_token: int | None = None
    num_cached_tokens: int = 0


class Loop:
    """Drives a scheduler and a worker; ``depth`` 1 is the plain loop, 2 the overlapped one."""

    def __init__(self, scheduler: Scheduler, worker: SimulatedWorker, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self.depth = depth
        self.in_flight: deque[tuple[StepPlan, StepResult | None]] = deque()
        self.plans: list[StepPlan] = []
        self.propose: Callable[[StepPlan], Ragged | None] = lambda plan: None
        self.results: dict[str, Finished] = {}

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.results[request.request_id] = Finished()

    def abort(self, request_ids: Iterable[str]) -> list[str]:
        aborted = self.scheduler.abort(request_ids)
        for request_id in aborted:
            self.results[request_id].reason = "abort"
        return aborted

    def launch(
        self, fault_rows: Callable[[StepPlan], Collection[int]] = lambda plan: (), fails: bool = False
    ) -> StepPlan | None:
        """Plan and execute a step; its result is kept back. ``fails``: it writes garbage and will raise."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self.plans.append(plan)
            result = self.worker.execute(plan, range(plan.num_rows) if fails else fault_rows(plan))
            result = replace(result, drafts=self.propose(plan))
            self.in_flight.append((plan, None if fails else result))
        return plan

    def land(self, index: int = 0) -> list[RowOutput]:
        """Hand a result to the scheduler: the oldest, or that of any step that raised."""
        plan, result = self.in_flight[index]
        del self.in_flight[index]
        if result is None:
            return self._collect(self.scheduler.fail(plan, "the step raised"))
        return self._collect(self.scheduler.update(plan, result))

    def take_ended(self) -> list[RowOutput]:
        """Outputs of requests that ended while they waited, from schedulers that have some."""
        take_ended = getattr(self.scheduler, "take_ended", list)
        return self._collect(take_ended())

    def step(self) -> None:
        """One turn: fill the pipe, then land the oldest."""
        while len(self.in_flight) < self.depth and self.launch() is not None:
            pass
        if self.in_flight:
            self.land()
        self.take_ended()

    def run(self, most_steps: int = 10_000) -> dict[str, Finished]:
        """Turn until nothing is left."""
        for _ in range(most_steps):
            if not self.scheduler.has_work():
                return self.results
            self.step()
        raise AssertionError("the loop does not end")

    def _collect(self, outputs: list[RowOutput]) -> list[RowOutput]:
        for output in outputs:
            result = self.results[output.request_id]
            assert result.reason is None, "output after the end"
            result.tokens.extend(output.tokens)
            result.reason = output.finish_reason
            result.stop_token = output.stop_token
            result.num_cached_tokens = output.num_cached_tokens
            assert (output.finish_reason == "error") == (output.error is not None)
        return outputs
