"""Synthetic workloads: the distributions asked for, a seed that settles everything."""

import numpy as np
import pytest
from llm_scheduler.sim import (
    Fixed,
    InvalidWorkload,
    LogNormal,
    Process,
    RequestSpec,
    SyntheticSpec,
    TenantSpec,
    Uniform,
    Workload,
    parse_lengths,
    summarize,
    synthesize,
)

RNG = np.random.default_rng


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("7", Fixed(7)),
        ("fixed:7", Fixed(7)),
        ("uniform:3:9", Uniform(3, 9)),
        ("lognormal:500:0.8:4000", LogNormal(500, 0.8, 4000)),
        ("lognormal:500:0.8", LogNormal(500, 0.8, 16000)),
    ],
)
def test_the_short_notation_of_lengths(text, lengths):
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text", ["", "x", "0", "uniform:9:3", "uniform:3", "normal:3:4", "lognormal:1e9:nan"]
)
def test_a_bad_notation_is_refused(text):
    with pytest.raises(InvalidWorkload):
        parse_lengths(text)


def test_lengths_follow_their_distributions():
    assert set(Uniform(3, 5).draw(RNG(0), 1000).tolist()) == {3, 4, 5}
    drawn = LogNormal(500, 0.8, 10**6).draw(RNG(0), 200_000)
    assert drawn.mean() == pytest.approx(500, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.8, rel=0.02)
    assert LogNormal(500, 2.0, 700).draw(RNG(0), 1000).max() == 700


@pytest.mark.parametrize("process", [Process.POISSON, Process.GAMMA, Process.UNIFORM])
def test_arrivals_come_at_their_rate_and_variation(process):
    workload = synthesize(SyntheticSpec(num_requests=50_000, process=process, rate=5.0, cv=3.0), seed=1)
    gaps = np.diff(workload.arrival_s)
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    expected = {Process.POISSON: 1.0, Process.GAMMA: 3.0, Process.UNIFORM: 0.0}[process]
    assert gaps.std() / gaps.mean() == pytest.approx(expected, rel=0.05, abs=1e-6)


def test_a_seed_settles_everything_and_another_changes_it():
    spec = SyntheticSpec(num_requests=200, prompt_tokens=Uniform(1, 99), prefix_groups=2, turns=Uniform(1, 3))
    again, other = synthesize(spec, seed=7), synthesize(spec, seed=8)
    first = synthesize(spec, seed=7)
    assert [first.spec(i) for i in range(200)] == [again.spec(i) for i in range(200)]
    assert [first.spec(i) for i in range(200)] != [other.spec(i) for i in range(200)]


def test_one_distribution_does_not_disturb_the_others():
    plain = synthesize(SyntheticSpec(num_requests=100, prompt_tokens=Uniform(1, 99)), seed=7)
    shared = synthesize(
        SyntheticSpec(num_requests=100, prompt_tokens=Uniform(1, 99), prefix_groups=4), seed=7
    )
    assert plain.arrival_s.tolist() == shared.arrival_s.tolist()
    assert (shared.prompt_tokens - plain.prompt_tokens == 1024).all()


def test_tenants_get_their_shares():
    tenants = (TenantSpec(name="a", share=3, weight=2), TenantSpec(name="b", priority=5))
    workload = synthesize(SyntheticSpec(num_requests=20_000, tenants=tenants))
    names = [workload.tenant_names[tenant] for tenant in workload.tenants.tolist()]
    assert names.count("a") / len(names) == pytest.approx(0.75, abs=0.02)
    assert workload.tenant_weights == {"a": 2, "b": 1.0}
    assert {workload.spec(i).priority for i in range(100)} == {0, 5}


def test_prefixes_are_shared_within_their_groups_only():
    spec = SyntheticSpec(
        num_requests=300, prefix_groups=5, prefix_tokens=Fixed(20), prefix_share=0.5, prefix_zipf=1.0
    )
    workload = synthesize(spec, seed=2)
    heads = {}
    for index in range(300):
        group = workload.spec(index).shared
        heads.setdefault(group[0][0] if group else index, set()).add(
            tuple(workload.prompt(index)[:20].tolist())
        )
    assert all(len(head) == 1 for head in heads.values())
    assert len({head for found in heads.values() for head in found}) == len(heads)
    sizes = [sum(workload.spec(i).shared == ((f"prefix-{g}", 20),) for i in range(300)) for g in range(5)]
    assert sizes[0] > 2 * sizes[4] > 0
    assert sum(sizes) / 300 == pytest.approx(0.5, abs=0.1)


def test_prompts_of_different_requests_start_differently():
    workload = synthesize(SyntheticSpec(num_requests=5000, prompt_tokens=Fixed(2), output_tokens=Fixed(1)))
    heads = [int(workload.prompt(index)[0]) for index in range(5000)]
    heads += [int(workload.output(index)[0]) for index in range(5000)]
    assert len(set(heads)) == 10_000


def test_conversations_follow_one_another():
    workload = synthesize(SyntheticSpec(num_requests=100, turns=Fixed(4), think_s=2.0), seed=4)
    after = workload.after.tolist()
    assert after[:8] == [-1, 0, 1, 2, -1, 4, 5, 6]
    assert summarize(workload).follow_ups == 75
    assert workload.arrival_s[workload.after >= 0].mean() == pytest.approx(2.0, rel=0.3)


def test_users_of_a_closed_loop_hold_whole_conversations():
    spec = SyntheticSpec(num_requests=12, process=Process.CLOSED, users=2, turns=Fixed(2))
    workload = synthesize(spec)
    assert workload.after.tolist() == [-1, 0, -1, 2, 1, 4, 3, 6, 5, 8, 7, 10]
    assert workload.continues.tolist() == [False, True] * 6


def test_the_summary_tells_how_much_repeats():
    spec = RequestSpec(prompt_tokens=100, output_tokens=1, shared=(("g", 60),))
    assert summarize(Workload.from_specs([spec, spec, spec])).repeated_share == pytest.approx(120 / 300)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"num_requests": 0}, "num_requests"),
        ({"rate": 0.0}, "rate"),
        ({"cv": 0.0}, "cv"),
        ({"users": 0}, "users"),
        ({"think_s": -1.0}, "think_s"),
        ({"prefix_share": 2.0}, "prefix_share"),
        ({"tenants": ()}, "tenants"),
        ({"tenants": (TenantSpec(name="a"), TenantSpec(name="a"))}, "tenants"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"deadline_s": -1.0}, "deadline_s"),
    ],
)
def test_a_bad_description_names_its_field(fields, field):
    with pytest.raises(InvalidWorkload) as caught:
        synthesize(SyntheticSpec(**{"num_requests": 4, **fields}))
    assert caught.value.field == field


def test_a_request_cannot_follow_a_later_one():
    with pytest.raises(InvalidWorkload, match="after"):
        Workload.from_specs([RequestSpec(prompt_tokens=1, output_tokens=1, after=0)])
    with pytest.raises(InvalidWorkload, match="requests"):
        Workload.from_specs([])
