"""Checks that a scheduler keeps every promise of the ``Scheduler`` protocol; knows no implementation.

It drives the scheduler through scenarios and random sequences (arrivals, aborts, faults, failed steps, tiny
caches, one to three plans in flight). A simulated worker rebuilds everything from the plans alone. Each
broken rule is reported by name, with the shortest sequence found that breaks it.

Only the protocol is checked: on one full-attention KV group without a host tier, and without what a scheduler
may offer beyond it (drafts, encoder items, waits, deadlines, KV from elsewhere).

On the command line: ``python -m llm_scheduler.conformance my_package:MyScheduler``. In a test::

    from llm_scheduler import conformance

    def test_my_scheduler():
        conformance.check(MyScheduler)
"""

from llm_scheduler.conformance.capabilities import Seen
from llm_scheduler.conformance.operations import Sequence
from llm_scheduler.conformance.report import NotConformant, Report, Violation
from llm_scheduler.conformance.rules import Rule
from llm_scheduler.conformance.suite import cases, check, examine

__all__ = ["NotConformant", "Report", "Rule", "Seen", "Sequence", "Violation", "cases", "check", "examine"]
