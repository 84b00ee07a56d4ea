"""What `/metrics` says of the step loop's time."""

from llm_engine.core.core_state import CoreState
from llm_engine.stats import EngineStats
from llm_stack_server.metrics import Metrics


def test_each_phase_of_the_host_time_has_a_sample():
    metrics = Metrics()
    stats = EngineStats(
        steps=8, late_steps=3, plan_s=0.5, launch_s=1.5, result_s=2.5, between_s=3.5, host_s=4.5, wait_s=5.5
    )
    metrics.engine.note(CoreState(phase="running", generation=1), stats)
    text = metrics.render("")[0].decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    phases = {"plan": 0.5, "launch": 1.5, "result": 2.5, "between": 3.5}
    for phase, seconds in phases.items():
        assert float(lines[f'llm_stack_step_phase_seconds_total{{phase="{phase}"}}']) == seconds
    assert float(lines["llm_stack_late_steps_total"]) == 3
    assert float(lines["llm_stack_step_host_seconds_total"]) == 4.5
