"""The conformance suite passes two very different schedulers, and names each rule that others break."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from llm_kvcache import InvariantError
from llm_scheduler import (
    Busy,
    DuplicateRequest,
    InvalidResult,
    PlanOrderError,
    Ragged,
    StepPlan,
    TokenBudgetScheduler,
    conformance,
)
from llm_scheduler.conformance import NotConformant, Rule
from plain_scheduler import PlainScheduler, Wrapped, with_cache, with_config, with_outputs, with_plans

CASES = conformance.cases(40)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_default_scheduler_conforms(policy):
    report = conformance.check(TokenBudgetScheduler, conformance.cases(120, seed=1000, policy=policy))
    seen = {field.name: getattr(report.seen, field.name) for field in fields(report.seen)}
    assert all(seen.values()), seen


def test_a_scheduler_of_few_capabilities_conforms_and_the_report_names_them():
    report = conformance.check(PlainScheduler, num_sequences=100)
    assert (report.seen.overlapped, report.seen.preemptions) == (0, 0)
    assert report.seen.prefix_hits
    text = str(report)
    assert "preemption: NOT SEEN" in text
    assert "overlap (a plan made while another is in flight): NOT SEEN" in text


@pytest.mark.parametrize("case", conformance.cases(0), ids=str)
def test_each_scenario_can_be_a_test_of_its_own(case):
    conformance.check(TokenBudgetScheduler, [case])


# Schedulers that break a rule


def reversed_rows(plan, config):
    order = np.arange(plan.num_rows)[::-1]
    arrays = {name: getattr(plan, name)[order] for name in ("slots", "num_tokens", "num_computed", "samples")}
    return replace(plan, new_blocks=tuple(blocks.take(order) for blocks in plan.new_blocks), **arrays)


def one_slot_for_all(plan, config):
    return replace(plan, slots=np.full_like(plan.slots, plan.slots[0]))


def fewer_blocks(plan, config):
    """Admit with the blocks of the first chunk only."""
    rows = [plan.new_blocks[0].row(row) for row in range(plan.num_rows)]
    admitted = {new.slot for new in plan.admitted}
    for row, slot in enumerate(plan.slots.tolist()):
        if slot in admitted:
            rows[row] = rows[row][: -(-int(plan.num_computed[row] + plan.num_tokens[row]) // 4)]
    return replace(plan, new_blocks=(Ragged.from_rows(rows),))


def without_growth(plan, config):
    rows = [plan.new_blocks[0].row(row) for row in range(plan.num_rows)]
    admitted = {new.slot for new in plan.admitted}
    kept = [row if slot in admitted else [] for row, slot in zip(rows, plan.slots.tolist(), strict=True)]
    return replace(plan, new_blocks=(Ragged.from_rows(kept),))


def admitted_with(**changes):
    def change(plan: StepPlan, config: object) -> StepPlan:
        new = [replace(row, **{k: v(row) for k, v in changes.items()}) for row in plan.admitted]
        return replace(plan, admitted=new)

    return with_plans(change)


def outputs_with(**values):
    return with_outputs(lambda outputs: [replace(output, **values) for output in outputs])


class EmptyPlans(Wrapped):
    def schedule(self):
        plan = self.inner.schedule()
        if plan is not None or self.inner.stats().plans_in_flight:
            return plan
        nothing = np.empty(0, np.int32)
        step = self.inner.stats().steps
        no_rows = (nothing, nothing, nothing, np.empty(0, bool), (Ragged.empty(0),), [], nothing)
        return StepPlan(step, *no_rows, np.empty((0, 2), np.int32))


class RunsTheAborted(PlainScheduler):
    """Keeps its books right and goes on all the same."""

    def abort(self, request_ids):
        wanted = set(request_ids)
        found = [job for job in self.live() if job.request.request_id in wanted]
        for job in found:
            job.reason = "abort"
            self.counts["abort"] += 1
            if job in self.waiting:
                self.waiting.remove(job)
        return [job.request.request_id for job in found]

    def live(self):
        return [job for job in super().live() if job.reason is None]

    def stats(self):
        return replace(super().stats(), running=len(self.live()) - len(self.waiting))


class AbortsAll(Wrapped):
    def abort(self, request_ids):
        names = list(request_ids)
        self.inner.abort(names)
        return names


class Forgets(Wrapped):
    """Gives up after a while."""

    def schedule(self):
        return None if self.inner.stats().steps > 8 else self.inner.schedule()


class Crashes(Wrapped):
    def update(self, plan, result):
        outputs = self.inner.update(plan, result)
        if any(output.finish_reason == "stop" for output in outputs):
            raise KeyError("gone")
        return outputs


class AlwaysBusy(Wrapped):
    def add(self, request):
        raise Busy(1.0, "no")


class QueuesBlindly(Wrapped):
    def __init__(self, config, cache):
        super().__init__(config, cache)
        self.queue = []

    def add(self, request):
        self.queue.append(request)

    def has_work(self):
        return bool(self.queue) or self.inner.has_work()


class DropsTheOther(Wrapped):
    def add(self, request):
        try:
            self.inner.add(request)
        except DuplicateRequest:
            self.inner.abort([request.request_id])
            raise


class TakesAnyResult(Wrapped):
    def update(self, plan, result):
        try:
            return self.inner.update(plan, result)
        except InvalidResult:
            return []


class TakesAnyOrder(Wrapped):
    def update(self, plan, result):
        try:
            return self.inner.update(plan, result)
        except PlanOrderError:
            return []


class FailsQuietly(Wrapped):
    def fail(self, plan, message):
        return [replace(output, error="an error") for output in self.inner.fail(plan, message)]


class MiscountsRunning(Wrapped):
    def stats(self):
        return replace(self.inner.stats(), running=0)


class AlwaysAtWork(Wrapped):
    def has_work(self):
        return True


class IgnoresTheOptOut(Wrapped):
    def add(self, request):
        self.inner.add(replace(request, match_prefix=True))


class ChunksFirst(PlainScheduler):
    def order(self, wanted):
        return sorted(wanted, key=lambda pair: pair[1] == 1)


class AdmitsEarly(PlainScheduler):
    """Announces the waiting request's admission before it has a row."""

    def make_plan(self, rows, admitted):
        plan = super().make_plan(rows, admitted)
        if not self.waiting or not self.free_slots:
            return plan
        job = self.waiting[0]
        first = admitted or self.running
        new = replace(self.row(first[0]), request_id=job.request.request_id, slot=self.free_slots[0])
        tokens, payload = job.request.token_ids, job.request.payload
        new = replace(new, token_ids=tokens, num_prompt_tokens=len(tokens), payload=payload)
        return replace(plan, admitted=[*plan.admitted, new])

    def row(self, job):
        from plain_scheduler import new_row

        return new_row(job)


class AdmitsTwice(PlainScheduler):
    def make_plan(self, rows, admitted):
        plan = super().make_plan(rows, admitted)
        doubles = [replace(new, slot=self.free_slots[-1]) for new in plan.admitted if self.free_slots]
        return replace(plan, admitted=[*plan.admitted, *doubles])


class RunsAhead(PlainScheduler):
    """Computes a token that nobody has sampled yet."""

    def order(self, wanted):
        return super().order([(job, count + 1) for job, count in wanted])


class BreaksItsCache(Wrapped):
    def __init__(self, config, cache):
        super().__init__(config, cache)
        cache.check = self.broken

    def broken(self):
        if self.inner.stats().steps > 3:
            raise InvariantError("a block is free and in use")


def open_without_keys(cache, token_ids, **keys):
    return cache.open(token_ids)


def grow_and_publish(cache, seq, n):
    """Tell the cache that the prompt is computed before any step has run."""
    ok = cache.grow(seq, n)
    if ok:
        cache.commit(seq, min(cache.num_tokens(seq), cache.num_reserved(seq)))
    return ok


def shared_table(cache, seq, group=0):
    table = np.array(cache.block_table(seq, group))
    table[table == 3] = 0
    return table


BROKEN = [
    (Rule.PLAN_ARRAYS, with_plans(lambda plan, config: replace(plan, slots=plan.slots.astype(np.int64)))),
    (Rule.STEP_IDS, with_plans(lambda plan, config: replace(plan, step_id=plan.step_id + 1))),
    (Rule.PLAN_HAS_ROWS, EmptyPlans),
    (Rule.DECODE_ROWS_FIRST, with_plans(reversed_rows)),
    (Rule.ONE_ROW_A_SLOT, with_plans(one_slot_for_all)),
    (Rule.TOKEN_BUDGET, with_config(max_num_batched_tokens=lambda config: config.max_num_batched_tokens + 1)),
    (Rule.DECODES_BEFORE_CHUNKS, ChunksFirst),
    (Rule.PLAN_DEPTH, with_config(max_plans_in_flight=lambda config: config.max_plans_in_flight + 1)),
    (Rule.SLOT_RANGE, with_plans(lambda plan, config: replace(plan, slots=plan.slots + np.int32(5)))),
    (Rule.SLOT_IN_USE, with_plans(lambda plan, config: replace(plan, released=plan.released[:0]))),
    (Rule.SLOT_UNKNOWN, with_plans(lambda plan, config: replace(plan, admitted=[]))),
    (Rule.ADMITTED_HAS_ROW, AdmitsEarly),
    (Rule.ADMITTED_TOKENS, admitted_with(token_ids=lambda row: row.token_ids[: row.num_prompt_tokens])),
    (Rule.ADMITTED_TOKENS, admitted_with(payload=lambda row: None)),
    (Rule.ADMITTED_ONCE, AdmitsTwice),
    (Rule.ENDED_ROWS, RunsTheAborted),
    (Rule.BLOCK_TABLE, with_cache(block_table=shared_table)),
    (Rule.BLOCKS_ENOUGH, with_plans(without_growth)),
    (Rule.ADMISSION_BLOCKS, with_plans(fewer_blocks)),
    (Rule.SHARED_WRITE, with_cache(block_table=shared_table)),
    (Rule.KV_CONTENT, with_cache(open=open_without_keys)),
    (Rule.KV_CONTENT, with_cache(grow=grow_and_publish)),
    (Rule.BLOCKS_COME_BACK, with_cache(release_many=lambda cache, seqs: None)),
    (Rule.CACHE_CHECK, BreaksItsCache),
    (
        Rule.CONTIGUOUS,
        with_plans(lambda plan, config: replace(plan, num_computed=np.zeros_like(plan.num_computed))),
    ),
    (Rule.KNOWN_TOKENS_ONLY, RunsAhead),
    (Rule.SAMPLES, with_plans(lambda plan, config: replace(plan, samples=np.ones_like(plan.samples)))),
    (Rule.PAST_THE_END, with_config(max_model_len=lambda config: config.max_model_len + 1)),
    (Rule.PREFIX_OPT_OUT, IgnoresTheOptOut),
    (Rule.OUTPUT_ROWS, with_outputs(lambda outputs: outputs[::-1])),
    (Rule.OUTPUT_TOKENS, with_outputs(lambda outs: [replace(out, tokens=out.tokens * 2) for out in outs])),
    (Rule.FINISH_REASON, outputs_with(stop_token=None)),
    (Rule.LOGPROBS, outputs_with(logprobs=None)),
    (Rule.CACHED_TOKENS, outputs_with(num_cached_tokens=0)),
    (Rule.ERROR_OUTPUTS, FailsQuietly),
    (Rule.ADD_ACCEPTS, AlwaysBusy),
    (Rule.ADD_REFUSES, QueuesBlindly),
    (Rule.QUEUE_BOUND, with_config(max_waiting_requests=lambda config: 10_000)),
    (Rule.QUEUE_BOUND, with_config(max_waiting_tokens=lambda config: 10_000_000)),
    (Rule.RESULT_REFUSED, TakesAnyResult),
    (Rule.PLAN_ORDER, TakesAnyOrder),
    (Rule.ERRORS_CHANGE_NOTHING, DropsTheOther),
    (Rule.ABORT_ANSWER, AbortsAll),
    (Rule.HAS_WORK, AlwaysAtWork),
    (Rule.STATS, MiscountsRunning),
    (Rule.NO_CRASH, Crashes),
    (Rule.LIVENESS, Forgets),
]


@pytest.mark.parametrize(("rule", "factory"), BROKEN, ids=[str(rule) for rule, _ in BROKEN])
def test_a_broken_rule_is_named(rule, factory):
    report = conformance.examine(factory, CASES)
    assert rule in report.broken_rules, str(report)
    (found,) = [violation for violation in report.violations if violation.rule is rule]
    assert found.rule.label in str(report)
    assert found.message in str(report)
    assert found.transcript


def test_every_rule_has_a_scheduler_that_breaks_it():
    assert {rule for rule, _ in BROKEN} == set(Rule)


def test_a_finding_is_cut_down_to_what_is_needed():
    report = conformance.examine(with_cache(open=open_without_keys), conformance.cases(60)[21:])
    (found,) = [violation for violation in report.violations if violation.rule is Rule.KV_CONTENT]
    assert found.num_operations > 8
    assert len(found.sequence.operations) <= 6, str(found)
    again = conformance.examine(with_cache(open=open_without_keys), [found.sequence])
    assert again.broken_rules == {Rule.KV_CONTENT}


def test_check_raises_with_the_report():
    with pytest.raises(NotConformant, match="add-accepts") as caught:
        conformance.check(AlwaysBusy, CASES)
    assert caught.value.report.broken_rules == {Rule.ADD_ACCEPTS, Rule.ADD_REFUSES}


def run_command(*arguments, folder):
    command = [sys.executable, "-m", "llm_scheduler.conformance", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_the_command_line(tmp_path):
    source = (
        "from llm_scheduler import TokenBudgetScheduler\n\n\n"
        "class Endless(TokenBudgetScheduler):\n"
        "    def has_work(self):\n"
        "        return True\n"
    )
    Path(tmp_path / "third_party.py").write_text(source)
    sound = run_command("default", "--sequences", "20", "-v", folder=tmp_path)
    assert sound.returncode == 0, sound.stderr
    assert "seed 19\n" in sound.stdout
    assert "default conforms: " in sound.stdout
    broken = run_command("third_party:Endless", "--sequences", "5", folder=tmp_path)
    assert broken.returncode == 1
    assert "has-work: has_work tells" in broken.stdout
    unknown = run_command("third_party:Nobody", folder=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no scheduler 'third_party:Nobody'" in unknown.stderr
    listed = run_command("--rules", folder=tmp_path)
    assert len(listed.stdout.splitlines()) == len(Rule)
