"""Runs sequences on a scheduler and gathers what they find; knows nothing of single rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from llm_scheduler.conformance.capabilities import Seen
from llm_scheduler.conformance.driver import Driver, SchedulerFactory
from llm_scheduler.conformance.generation import random_sequence
from llm_scheduler.conformance.operations import Sequence
from llm_scheduler.conformance.report import NotConformant, Report, Violation
from llm_scheduler.conformance.rules import RuleBroken
from llm_scheduler.conformance.scenarios import scenarios
from llm_scheduler.conformance.shrinking import shrink
from llm_scheduler.loading import find_scheduler, load_scheduler

Subject: TypeAlias = SchedulerFactory | str
"""A scheduler class, anything that is called as ``(config, cache)``, or a name for ``load_scheduler``."""


def cases(num_sequences: int = 200, seed: int = 0, *, policy: str = "fcfs") -> list[Sequence]:
    """Return the scenarios and ``num_sequences`` random sequences, to parametrise a test with.

        @pytest.mark.parametrize("case", conformance.cases(), ids=str)
        def test_conformance(case):
            conformance.check(MyScheduler, [case])

    Args:
        num_sequences: Random sequences, at least 0; their seeds follow one another.
        seed: The first seed.
        policy: What the configs name as ``policy``.
    """
    drawn = [random_sequence(number, policy) for number in range(seed, seed + num_sequences)]
    return scenarios(policy) + drawn


def check(
    subject: Subject, sequences: Iterable[Sequence] | None = None, *, num_sequences: int = 200, seed: int = 0
) -> Report:
    """Check that a scheduler keeps the protocol.

    Args:
        subject: The scheduler: its class, a factory, an entry-point name, or ``module:Class``.
        sequences: What to run; by default ``cases(num_sequences, seed)``.
        num_sequences: Random sequences where none are given.
        seed: Their first seed.

    Returns:
        The report, which also names what the scheduler was never seen to do.

    Raises:
        NotConformant: With the report, where a rule is broken.
        SchedulerNotFound, IncompatibleScheduler: The name leads to no scheduler.
    """
    report = examine(subject, sequences, num_sequences=num_sequences, seed=seed)
    if not report.conforms:
        raise NotConformant(report)
    return report


def examine(
    subject: Subject,
    sequences: Iterable[Sequence] | None = None,
    *,
    num_sequences: int = 200,
    seed: int = 0,
    watch: Callable[[Sequence], object] = str,
) -> Report:
    """Do as ``check``, but return the report whatever it says.

    Args:
        subject: As in ``check``.
        sequences: As in ``check``.
        num_sequences: As in ``check``.
        seed: As in ``check``.
        watch: Called with each sequence before it runs.
    """
    factory = _factory_of(subject)
    name = subject if isinstance(subject, str) else getattr(subject, "__qualname__", repr(subject))
    seen = Seen()
    violations: dict[str, Violation] = {}
    chosen = cases(num_sequences, seed) if sequences is None else list(sequences)
    for sequence in chosen:
        watch(sequence)
        found = _violation(sequence, factory, seen)
        if found is not None and found.rule.label not in violations:
            violations[found.rule.label] = _shrunk(found, factory)
    found_all = tuple(violations.values())
    return Report(scheduler=name, num_sequences=len(chosen), violations=found_all, seen=seen)


def _factory_of(subject: Subject) -> SchedulerFactory:
    if not isinstance(subject, str):
        return subject
    find_scheduler(subject)  # a name that leads nowhere is no finding
    return partial(load_scheduler, subject)


def _violation(sequence: Sequence, factory: SchedulerFactory, seen: Seen) -> Violation | None:
    """Run a sequence up to its first broken rule."""
    driver = Driver(sequence, factory, seen)
    try:
        driver.run()
    except RuleBroken as broken:
        return Violation(
            rule=broken.rule,
            message=broken.message,
            sequence=sequence,
            num_operations=driver.num_applied + 1,
            transcript=tuple(driver.transcript),
        )
    return None


def _shrunk(found: Violation, factory: SchedulerFactory) -> Violation:
    """Return the violation of a shorter sequence that breaks the same rule."""

    def still_breaks(sequence: Sequence) -> bool:
        again = _violation(sequence, factory, Seen())
        return again is not None and again.rule is found.rule

    shorter = shrink(found.sequence, found.num_operations, still_breaks)
    again = _violation(shorter, factory, Seen())
    # A scheduler that draws its own lots may not break the rule again: then the first finding stands.
    if again is None or again.rule is not found.rule:
        return found
    return replace(again, num_operations=len(found.sequence.operations))
