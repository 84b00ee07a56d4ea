"""Whole simulations: determinism, conservation, figures that agree with the cache, faults of schedulers."""

import dataclasses
import json

import numpy as np
import pytest
from llm_kvcache import FullAttention, SlidingWindow
from llm_scheduler import (
    IncompatibleScheduler,
    InvalidConfig,
    Policy,
    SchedulerConfig,
    SchedulerNotFound,
    TokenBudgetScheduler,
)
from llm_scheduler.sim import (
    EngineSetup,
    Fixed,
    InvalidSetup,
    InvalidStepTime,
    Outcome,
    Process,
    RequestSpec,
    SchedulerFault,
    SchedulerStalled,
    Simulator,
    Slo,
    StepTimeModel,
    SyntheticSpec,
    TenantSpec,
    Uniform,
    Workload,
    compare,
    format_table,
    jain_index,
    simulate,
    synthesize,
)

MODEL = StepTimeModel(
    per_step_s=0.004, per_prefill_token_s=2e-5, per_decode_row_s=1e-5, per_context_token_s=1e-8
)
CONSTANT = StepTimeModel(per_step_s=1.0)


def setup(**fields):
    config = {
        "max_model_len": 512,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        **fields.pop("config", {}),
    }
    return EngineSetup(**{"config": SchedulerConfig(**config), "num_blocks": 64, "block_size": 4, **fields})


def mixed_workload(seed, **fields):
    """Conversations of two tenants with shared prefixes, stop tokens and a rate that fills the queue."""
    spec = SyntheticSpec(
        num_requests=80,
        rate=60.0,
        prompt_tokens=Uniform(1, 60),
        output_tokens=Uniform(1, 30),
        max_tokens=40,
        tenants=(TenantSpec(name="a", weight=2.0), TenantSpec(name="b", priority=-1)),
        prefix_groups=2,
        prefix_tokens=Uniform(8, 40),
        prefix_share=0.7,
        turns=Uniform(1, 3),
    )
    return synthesize(dataclasses.replace(spec, **fields), seed)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_bytes(seed, policy):
    def report():
        engine = setup(config={"policy": policy})
        return simulate(mixed_workload(seed), engine, MODEL, slo=Slo(ttft_s=1.0)).report.to_json()

    assert report() == report()


@pytest.mark.parametrize("seed", range(24))
def test_every_request_ends_exactly_once(seed):
    workload = mixed_workload(
        seed, process=Process.CLOSED if seed % 3 == 0 else Process.GAMMA, users=5, cv=3.0
    )
    engine = setup(
        config={"max_waiting_requests": 3, "policy": ["fcfs", "priority"][seed % 2], "max_model_len": 150},
        num_blocks=48,
        depth=1 + seed % 2,
        max_retries=seed % 3,
    )
    simulator = Simulator(workload, engine, MODEL)
    recording = simulator.run()
    log = recording.requests
    outcomes = log.outcomes
    finished = outcomes == Outcome.FINISHED
    assert (outcomes != Outcome.PENDING).all()
    assert finished.any()
    limits = np.minimum(workload.output_tokens, 150 - workload.prompt_tokens)
    assert (log.num_outputs[finished] == limits[finished]).all()
    assert (log.num_outputs[~finished] == 0).all()
    assert np.isnan(log.arrived_s[outcomes == Outcome.NOT_SENT]).all()
    assert sum(log.refusals.values()) == (outcomes == Outcome.REFUSED).sum()
    assert len(log.itl_s()) == limits[finished].sum() - finished.sum()
    # In the overlapped loop a preempted request may end by a token in flight, without another admission.
    spared = finished.sum() + recording.preemptions - recording.admissions
    assert spared >= 0 if engine.depth == 2 else spared == 0
    assert recording.tenants.live == [0, 0]
    times = np.stack([log.arrived_s, log.admitted_s, log.first_token_s, log.last_token_s])[:, finished]
    assert (np.diff(times, axis=0) >= 0).all()
    stats = simulator.cache.stats()
    assert stats.used == stats.sequences == 0
    simulator.cache.check()


def test_these_runs_meet_preemptions_refusals_and_conversations_cut_short():
    recordings = [
        Simulator(mixed_workload(seed), setup(config={"max_waiting_requests": 3}, num_blocks=48), MODEL).run()
        for seed in range(6)
    ]
    assert any(recording.preemptions for recording in recordings)
    found = {int(outcome) for recording in recordings for outcome in recording.requests.outcomes}
    assert found == {Outcome.FINISHED, Outcome.REFUSED, Outcome.NOT_SENT}


def test_computed_tokens_add_up():
    workload = mixed_workload(3)
    simulation = simulate(workload, setup(num_blocks=4096, config={"max_waiting_requests": 1000}), MODEL)
    report, recording = simulation.report, simulation.recording
    assert report.requests.finished == 80
    assert report.steps.preemptions == 0
    # The last token of a request is never computed, unless the overlapped loop did so in vain.
    expected = (workload.prompt_tokens + workload.output_tokens - 1).sum() - report.cache.cached_tokens
    assert sum(recording.steps.num_tokens) == expected + report.steps.wasted_tokens
    assert recording.tenants.served.sum() == sum(recording.steps.num_tokens)
    assert report.cache.hit_rate > 0.3


def test_occupancy_is_what_the_cache_says():
    seen = []

    class Watching:
        def seconds(self, load):
            stats = simulator.cache.stats()
            seen.append((stats.used, simulator.scheduler.stats().waiting))
            return MODEL.seconds(load)

    simulator = Simulator(mixed_workload(1), setup(), Watching())
    steps = simulator.run().steps
    assert list(zip(steps.used_blocks, steps.waiting, strict=True)) == seen
    assert max(steps.used_blocks) > 32


def test_busy_requests_come_back():
    workload = mixed_workload(2, turns=Fixed(1), rate=1000.0)
    engine = setup(config={"max_waiting_requests": 2})
    refused = simulate(workload, engine, MODEL).report.requests
    patient = simulate(workload, dataclasses.replace(engine, max_retries=1000), MODEL).report.requests
    assert refused.refusals == {"Busy": refused.refused}
    assert refused.refused > 20
    assert (patient.finished, patient.refused) == (80, 0)
    assert patient.retries > 20


def test_what_never_fits_is_counted_by_its_error():
    specs = [RequestSpec(prompt_tokens=n, output_tokens=2) for n in (10, 400, 600)]
    requests = simulate(Workload.from_specs(specs), setup(), MODEL).report.requests
    assert (requests.finished, requests.refusals) == (1, {"InvalidRequest": 1, "NeverFits": 1})


def test_a_shared_prefix_is_found():
    spec = RequestSpec(prompt_tokens=100, output_tokens=2, shared=(("system", 80),))
    later = dataclasses.replace(spec, arrival_s=10.0)
    workload = Workload.from_specs([spec, later])
    simulation = simulate(workload, setup(), MODEL)
    assert simulation.recording.requests.cached_tokens.tolist() == [0, 80]
    assert simulation.report.cache.hit_rate == pytest.approx(0.4)
    cold = simulate(workload, setup(prefix_caching=False), MODEL).report
    assert cold.cache.hit_rate == 0


def test_a_conversation_finds_its_earlier_turns():
    turns = [RequestSpec(prompt_tokens=40, output_tokens=9)]
    turns += [RequestSpec(prompt_tokens=8, output_tokens=9, after=i, continues=True) for i in range(2)]
    recording = simulate(Workload.from_specs(turns), setup(), MODEL).recording.requests
    # Prompt and answer but for its last token, in full blocks of 4.
    assert recording.cached_tokens.tolist() == [0, 48, 64]


def test_goodput_counts_requests_within_the_bounds():
    specs = [
        RequestSpec(prompt_tokens=8, output_tokens=3, arrival_s=t, deadline_s=4.0) for t in (0.0, 0.5, 9.0)
    ]
    workload = Workload.from_specs(specs)
    engine = setup(depth=1, config={"max_num_seqs": 1})
    # One at a time, three steps of a second each: first tokens after 1, 3.5 and 1 s, last ones 2 s later.
    report = simulate(workload, engine, CONSTANT, slo=Slo(ttft_s=1.0)).report
    assert (report.goodput.good, report.goodput.deadlines_met, report.goodput.with_deadline) == (2, 2, 3)
    assert report.goodput.share == pytest.approx(2 / 3)
    assert simulate(workload, engine, CONSTANT, slo=Slo(itl_s=0.9)).report.goodput.good == 0
    assert simulate(workload, engine, CONSTANT, slo=Slo(max_itl_s=1.0, e2e_s=3.0)).report.goodput.good == 2


def test_goodput_is_none_without_bounds_and_deadlines():
    report = simulate(
        Workload.from_specs([RequestSpec(prompt_tokens=8, output_tokens=3)]), setup(), MODEL
    ).report
    assert report.goodput is None
    assert "goodput" not in format_table([report])


def test_fairness_weighs_what_tenants_got_while_they_competed():
    tenants = (TenantSpec(name="a", share=3.0), TenantSpec(name="b", share=1.0))
    spec = SyntheticSpec(num_requests=400, process=Process.BATCH, tenants=tenants, prompt_tokens=Fixed(8))
    workload = synthesize(dataclasses.replace(spec, output_tokens=Fixed(8)))
    engine = setup(config={"max_waiting_requests": 1000})
    fairness = simulate(workload, engine, MODEL).report.fairness
    # Under fcfs each got what it asked for, about three to one; all requests are of one size.
    asked = np.bincount(workload.tenants).astype(np.float64)
    assert fairness.jain_served == pytest.approx(jain_index(asked))
    assert fairness.jain_contended == pytest.approx(jain_index(asked), abs=0.02)
    weights = dict(zip(workload.tenant_names, asked.tolist(), strict=True))
    weighted = dataclasses.replace(workload, tenant_weights=weights)
    assert simulate(weighted, engine, MODEL).report.fairness.jain_served == pytest.approx(1.0)


def test_jains_index():
    assert jain_index(np.array([2.0, 2.0, 2.0])) == pytest.approx(1.0)
    assert jain_index(np.array([5.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert jain_index(np.zeros(3)) == 1.0


def test_priority_serves_the_urgent_first():
    workload = mixed_workload(5, turns=Fixed(1), rate=500.0)
    engine = setup(config={"max_waiting_requests": 1000})
    fcfs, priority = (s.report for s in compare(workload, engine, MODEL, ["fcfs", "priority"]))
    assert (fcfs.name, priority.name) == ("fcfs", "priority")
    assert priority.tenants["b"].ttft_s.mean < 0.7 * fcfs.tenants["b"].ttft_s.mean
    assert priority.tenants["a"].ttft_s.mean > fcfs.tenants["a"].ttft_s.mean


def test_the_timeline_covers_the_run():
    report = simulate(mixed_workload(1), setup(), MODEL).report
    line = report.timeline
    assert len(line.running) == len(line.waiting) == len(line.kv_usage) == 200
    assert sum(line.tokens_per_s) * line.interval_s == pytest.approx(
        report.steps.steps * report.steps.mean_tokens
    )
    assert max(line.kv_usage) <= report.cache.max_usage


# Schedulers from outside


class WithoutClock(TokenBudgetScheduler):
    """A scheduler whose constructor knows no clock."""

    def __init__(self, config, cache):
        super().__init__(config, cache)


class Lazy(TokenBudgetScheduler):
    """Plans nothing."""

    def schedule(self):
        return None


class Forgetful(TokenBudgetScheduler):
    """Ends requests early."""

    def update(self, plan, result):
        outputs = super().update(plan, result)
        for output in outputs:
            output.finish_reason = output.finish_reason or "length"
        return outputs


class Repeating(TokenBudgetScheduler):
    """Ends requests twice."""

    def update(self, plan, result):
        outputs = super().update(plan, result)
        return outputs + [output for output in outputs if output.finish_reason]


class OfAnotherVersion(TokenBudgetScheduler):
    """Keeps another protocol."""

    API_VERSION = 99


class NoScheduler:
    """Keeps none."""

    API_VERSION = 1

    def __init__(self, config, cache):
        pass


def test_a_scheduler_without_a_clock_plans_alike():
    workload, engine = mixed_workload(4), setup(config={"max_waiting_requests": 1000})
    ours, theirs = compare(workload, engine, MODEL, ["default", WithoutClock])
    assert theirs.report.name == "WithoutClock"
    assert theirs.report.setup["scheduler"].endswith(":WithoutClock")
    same = {"name", "setup"}
    left, right = (json.loads(simulation.report.to_json()) for simulation in (ours, theirs))
    assert {k: v for k, v in left.items() if k not in same} == {
        k: v for k, v in right.items() if k not in same
    }


@pytest.mark.parametrize(
    ("scheduler", "error"),
    [
        (Lazy, SchedulerStalled),
        (Forgetful, SchedulerFault),
        (Repeating, SchedulerFault),
        (OfAnotherVersion, InvalidSetup),
        (NoScheduler, IncompatibleScheduler),
        ("nobody", SchedulerNotFound),
        ("nobody:Nothing", SchedulerNotFound),
    ],
)
def test_what_goes_wrong_with_a_scheduler_is_named(scheduler, error):
    with pytest.raises(error):
        simulate(mixed_workload(0), setup(scheduler=scheduler), MODEL)


def test_names_of_policies_and_schedulers():
    engine = setup()
    assert engine.with_name("priority").config.policy == "priority"
    assert engine.with_name("default").scheduler == "default"
    both = engine.with_name("llm_scheduler:TokenBudgetScheduler@priority")
    assert (both.scheduler, both.config.policy) == ("llm_scheduler:TokenBudgetScheduler", "priority")
    with pytest.raises(InvalidConfig, match="policy"):
        compare(mixed_workload(0), engine, MODEL, ["fcfs", "nonsense"])
    with pytest.raises(InvalidSetup, match="names"):
        compare(mixed_workload(0), engine, MODEL, ["fcfs", "fcfs"])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"num_blocks": 0}, "num_blocks"),
        ({"block_size": 0}, "block_size"),
        ({"depth": 3}, "depth"),
        ({"host_s": -1.0}, "host_s"),
        ({"max_retries": -1}, "max_retries"),
        ({"config": {"max_plans_in_flight": 1}}, "depth"),
    ],
)
def test_a_bad_setup_names_its_field(fields, field):
    with pytest.raises(InvalidSetup) as caught:
        setup(**fields)
    assert caught.value.field == field


def test_a_bad_bound_is_refused():
    with pytest.raises(InvalidSetup, match="ttft"):
        Slo(ttft_s=0.0)


def test_a_deadline_that_cannot_be_met_is_refused():
    first = RequestSpec(prompt_tokens=200, output_tokens=20)
    hopeless = RequestSpec(prompt_tokens=200, output_tokens=20, arrival_s=0.05, deadline_s=1e-3)
    requests = simulate(Workload.from_specs([first, hopeless]), setup(num_blocks=200), MODEL).report.requests
    assert requests.refusals == {"DeadlineUnmet": 1}


def test_requests_expire_in_the_queue():
    workload = mixed_workload(6, turns=Fixed(1), rate=400.0, deadline_s=0.35, tenants=(TenantSpec(name="a"),))
    engine = setup(config={"max_waiting_requests": 1000, "policy": "deadline"})
    report = simulate(workload, engine, MODEL).report
    requests = report.requests
    assert requests.expired > 20
    assert requests.total == 80 == requests.finished + requests.expired
    assert report.goodput.good == report.goodput.deadlines_met <= requests.finished
    assert "expired" in format_table([report])


def test_fair_gives_tenants_their_weights():
    tenants = (TenantSpec(name="a", share=3.0, weight=1.0), TenantSpec(name="b", share=1.0, weight=3.0))
    spec = SyntheticSpec(num_requests=400, process=Process.BATCH, tenants=tenants, prompt_tokens=Fixed(8))
    engine = setup(config={"max_waiting_requests": 1000})
    workload = synthesize(dataclasses.replace(spec, output_tokens=Fixed(8)))
    fcfs, fair = (s.report for s in compare(workload, engine, MODEL, ["fcfs", "fair"]))
    assert fair.fairness.jain_contended > fcfs.fairness.jain_contended + 0.2
    assert fair.fairness.jain_contended > 0.95


def test_prefix_finds_more_than_fcfs():
    workload = mixed_workload(7, turns=Fixed(1), prefix_groups=8, prefix_tokens=Fixed(60), rate=1000.0)
    engine = setup(config={"max_waiting_requests": 1000}, num_blocks=100)
    fcfs, prefix = (s.report for s in compare(workload, engine, MODEL, ["fcfs", "prefix"]))
    assert prefix.cache.hit_rate > fcfs.cache.hit_rate


class ShortestFirst(Policy):
    """By the length of the prompt."""

    def key(self, request):
        return (len(request.token_ids), request.arrival_s)


class WithoutPolicy(WithoutClock):
    """A scheduler whose constructor takes no policy object."""


def test_a_policy_of_ones_own():
    workload, engine = (
        mixed_workload(8, turns=Fixed(1), rate=500.0),
        setup(config={"max_waiting_requests": 1000}),
    )
    fcfs, own = (s.report for s in compare(workload, engine, MODEL, ["fcfs", ShortestFirst]))
    assert own.name == "ShortestFirst"
    assert own.setup["policy"].endswith(":ShortestFirst")
    assert own.ttft_s.p50 < fcfs.ttft_s.p50
    with pytest.raises(InvalidSetup, match="policy"):
        simulate(workload, dataclasses.replace(engine, scheduler=WithoutPolicy, policy=ShortestFirst), MODEL)


def test_eviction_policies_are_compared_too():
    # Two popular prefixes and a stream of others: what is used often should stay.
    workload = mixed_workload(9, turns=Fixed(1), prefix_groups=12, prefix_tokens=Fixed(60), prefix_zipf=1.5)
    engine = setup(config={"max_waiting_requests": 1000}, num_blocks=100)
    lru, lfu = (s.report for s in compare(workload, engine, MODEL, ["fcfs", "fcfs/lfu"]))
    assert (lru.setup["eviction"], lfu.setup["eviction"]) == ("lru", "lfu")
    assert lru.cache.evictions > 0
    assert lfu.cache.hit_rate != lru.cache.hit_rate
    with pytest.raises(InvalidSetup, match="eviction"):
        simulate(workload, dataclasses.replace(engine, eviction="nonsense"), MODEL)


def test_a_cache_of_other_groups_is_simulated():
    groups = (FullAttention(block_size=4), SlidingWindow(block_size=4, window=16))
    workload = mixed_workload(10)
    engine = setup(config={"max_waiting_requests": 1000}, num_blocks=200, groups=groups)
    simulator = Simulator(workload, engine, MODEL)
    recording = simulator.run()
    assert (recording.requests.outcomes == Outcome.FINISHED).all()
    simulator.cache.check()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_must_take_time(seconds):
    class Broken:
        def seconds(self, load):
            return seconds

    with pytest.raises(InvalidStepTime, match="positive"):
        simulate(mixed_workload(0), setup(), Broken())
