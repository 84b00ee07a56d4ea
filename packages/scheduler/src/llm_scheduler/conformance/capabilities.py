"""What a scheduler was seen to do beyond its duties; knows nothing of rules."""

from __future__ import annotations

from dataclasses import dataclass

from llm_scheduler.plan import StepPlan


@dataclass(slots=True)
class Seen:
    """Counts over all sequences; a zero names what was never seen, and so never tested.

    Attributes:
        plans: Plans made.
        batched: Plans with several rows.
        chunked: Plans with a row that does not reach the end of its prompt.
        overlapped: Plans made while another was in flight.
        prefix_hits: Admissions that found a part of their prompt in the cache.
        preemptions: Admissions of a request that had held a slot before.
        refused_busy: Requests refused because the queue was full.
        aborts: Live requests aborted.
        errors: Requests ended by a fault or a failed step.
    """

    plans: int = 0
    batched: int = 0
    chunked: int = 0
    overlapped: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    refused_busy: int = 0
    aborts: int = 0
    errors: int = 0

    def count_plan(self, plan: StepPlan, num_in_flight: int) -> None:
        """Count a plan; ``num_in_flight`` is that before it."""
        self.plans += 1
        self.batched += plan.num_rows > 1
        self.chunked += not plan.samples.all()
        self.overlapped += num_in_flight > 0

    def lines(self) -> list[str]:
        """Return one line for each capability: how often it was seen, or that it was not."""
        counts = {
            "batching (several rows in a plan)": self.batched,
            "chunked prefill": self.chunked,
            "overlap (a plan made while another is in flight)": self.overlapped,
            "prefix hits": self.prefix_hits,
            "preemption": self.preemptions,
            "a full queue": self.refused_busy,
        }
        return [f"{name}: {f'seen {count} times' if count else 'NOT SEEN'}" for name, count in counts.items()]
