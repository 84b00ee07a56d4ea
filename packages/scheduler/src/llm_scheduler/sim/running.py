"""One call from workload to report, and several setups side by side; knows nothing of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from llm_scheduler.sim.engine_setup import EngineSetup
from llm_scheduler.sim.errors import InvalidSetup
from llm_scheduler.sim.metrics import make_report
from llm_scheduler.sim.recording import Recording
from llm_scheduler.sim.report import Report, Slo
from llm_scheduler.sim.simulator import Simulator
from llm_scheduler.sim.step_time import StepTime
from llm_scheduler.sim.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """A finished simulation.

    Attributes:
        report: Its figures.
        recording: What happened to every request and in every step.
    """

    report: Report
    recording: Recording


def simulate(
    workload: Workload,
    setup: EngineSetup,
    step_time: StepTime,
    *,
    slo: Slo | None = None,
    name: str | None = None,
) -> Simulation:
    """Run a workload through the real scheduler and the real cache on a simulated clock.

    Args:
        workload: What arrives.
        setup: The engine.
        step_time: How long a step takes.
        slo: Bounds of goodput.
        name: Name of the report; the setup's label where left out.

    Returns:
        The same for the same arguments, to the byte of ``report.to_json()``.

    Raises:
        SchedulerNotFound, IncompatibleScheduler, InvalidConfig: The setup names no usable scheduler.
        SchedulerStalled: The scheduler keeps requests and plans nothing.
        SchedulerFault: The scheduler broke its protocol.
    """
    simulator = Simulator(workload, setup, step_time)
    recording = simulator.run()
    report = make_report(
        name or setup.label,
        workload,
        recording,
        simulator.cache.stats(),
        slo=slo,
        setup=_as_data(setup),
    )
    return Simulation(report, recording)


def compare(
    workload: Workload,
    setup: EngineSetup,
    step_time: StepTime,
    names: Sequence[str | type],
    *,
    slo: Slo | None = None,
) -> list[Simulation]:
    """Run the same workload under several policies or schedulers, everything else alike.

    Args:
        workload: What arrives.
        setup: The engine; its policy or scheduler is replaced by each of the names.
        step_time: How long a step takes.
        names: As in ``EngineSetup.with_name``, or policy or scheduler classes; none twice.
        slo: Bounds of goodput.

    Raises:
        InvalidSetup: A name comes twice.
        SchedulerNotFound, IncompatibleScheduler, InvalidConfig: A name is no usable policy or scheduler.
        SchedulerStalled, SchedulerFault: As ``simulate``.
    """
    InvalidSetup.require("names", len(set(names)) == len(names), "a name comes twice")
    setups = [setup.with_name(name) for name in names]
    for candidate in setups:
        # All are tried before the first long run, so that a wrong name costs no time.
        Simulator(workload, candidate, step_time)
    titles = [name if isinstance(name, str) else name.__name__ for name in names]
    return [
        simulate(workload, candidate, step_time, slo=slo, name=title)
        for candidate, title in zip(setups, titles, strict=True)
    ]


def _as_data(setup: EngineSetup) -> dict[str, object]:
    data = asdict(setup)
    for name in ("scheduler", "policy"):
        value = data[name]
        if isinstance(value, type):
            data[name] = f"{value.__module__}:{value.__qualname__}"
    return data
