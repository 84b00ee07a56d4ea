"""What the suite found, for people; knows nothing of how it was found."""

from __future__ import annotations

from dataclasses import dataclass, field

from llm_scheduler.conformance.capabilities import Seen
from llm_scheduler.conformance.operations import Sequence
from llm_scheduler.conformance.rules import Rule
from llm_scheduler.errors import SchedulerError

_LAST_LINES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule, at its first place.

    Attributes:
        rule: The rule.
        message: What was seen.
        sequence: The sequence, cut down to what is needed.
        num_operations: How many operations it had before.
        transcript: What happened, one line each, up to the broken rule.
    """

    rule: Rule
    message: str
    sequence: Sequence
    num_operations: int
    transcript: tuple[str, ...]

    def __str__(self) -> str:
        now = len(self.sequence.operations)
        cut = f", cut from {self.num_operations} operations to {now}" if now < self.num_operations else ""
        hidden = len(self.transcript) - _LAST_LINES
        lines = [
            f"{self.rule.label}: {self.rule.text}",
            f"  {self.message}",
            f"  in {self.sequence.name}{cut}",
        ]
        lines += [f"    {line}" for line in str(self.sequence.world).splitlines()]
        lines += [f"    ... {hidden} lines before"] if hidden > 0 else []
        lines += [f"    {line}" for line in self.transcript[-_LAST_LINES:]]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome for one scheduler.

    Attributes:
        scheduler: Its name.
        num_sequences: Sequences run.
        violations: One for each broken rule, in the order of their discovery.
        seen: What the scheduler was seen to do.
    """

    scheduler: str
    num_sequences: int
    violations: tuple[Violation, ...] = ()
    seen: Seen = field(default_factory=Seen)

    @property
    def conforms(self) -> bool:
        """Whether no rule was broken."""
        return not self.violations

    @property
    def broken_rules(self) -> frozenset[Rule]:
        """The rules that were broken."""
        return frozenset(violation.rule for violation in self.violations)

    def __str__(self) -> str:
        ran = f"{self.num_sequences} sequences, {self.seen.plans} plans"
        if self.conforms:
            head = f"{self.scheduler} conforms: {ran}"
        else:
            head = f"{self.scheduler} does not conform: {len(self.violations)} rules broken ({ran})"
        parts = [head, *(f"\n{violation}" for violation in self.violations)]
        return "\n".join([*parts, "", *(f"  {line}" for line in self.seen.lines())])


class NotConformant(SchedulerError, AssertionError):
    """A scheduler breaks rules of the protocol.

    Attributes:
        report: Which, where, and how to see it again.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report
