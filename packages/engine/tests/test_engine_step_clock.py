"""How the step loop's time is split into phases."""

import pytest
from llm_engine.core.step_clock import StepClock
from llm_engine.stats import EngineStats


def clock_of(*times):
    return StepClock(iter(times).__next__)


def test_each_phase_gets_the_time_since_the_last_reading():
    clock = clock_of(10.0, 11.0, 13.0, 16.0, 20.0)
    clock.begin()
    for phase in ("plan", "launch", "wait", "result"):
        clock.lap(phase)
    assert clock.seconds == {"plan": 1.0, "launch": 2.0, "wait": 3.0, "result": 4.0, "between": 0.0}


@pytest.mark.parametrize(("work_left", "between"), [(True, 5.0), (False, 0.0)])
def test_time_between_steps_counts_only_while_work_is_left(work_left, between):
    clock = clock_of(1.0, 2.0, 7.0, 8.0)
    clock.begin()
    clock.lap("plan")
    clock.end(work_left=work_left)
    clock.begin()
    clock.lap("plan")
    assert clock.seconds["between"] == between
    assert clock.seconds["plan"] == 2.0


def test_a_phase_that_nobody_knows_is_refused():
    with pytest.raises(KeyError):
        clock_of(1.0).lap("lunch")


def test_the_engine_reports_phases_that_add_up(llm):
    from llm_engine import SamplingParams

    before = llm.stats()
    llm.generate(["a b c"], SamplingParams(max_tokens=4, ignore_eos=True), progress=False)
    after = llm.stats()
    assert isinstance(after, EngineStats)
    assert after.plan_s > before.plan_s
    assert after.result_s > before.result_s
    assert after.between_s > before.between_s
    assert after.wait_s > before.wait_s
    assert after.launch_s == 0.0  # the CPU runs the step where a GPU would only be handed it
    assert after.host_s == pytest.approx(after.plan_s + after.launch_s + after.result_s)
