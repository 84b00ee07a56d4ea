"""One fuzzing run: workers that send cases, the watch beside them, and the verdict."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.server_fuzz.cases import Case, make_case
from scripts.server_fuzz.client import Answer, send
from scripts.server_fuzz.judge import faults
from scripts.server_fuzz.seeds import seeds
from scripts.server_fuzz.watch import Liveness, ask, known_answer, left_over

_ALIVE_S = 1.0
_LOG_FAULTS = (
    "Traceback",
    "internal_error",
    "starting it again",
    "never awaited",
    "Task exception was never",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test.

    Attributes:
        host: Its address.
        port: Its port.
        model: The served name.
        gives_vectors: Whether the model embeds rather than generates.
        log: What it has logged so far.
        memory: Resident bytes of all its processes, or 0 where they are not watched.
    """

    host: str
    port: int
    model: str
    gives_vectors: bool
    log: Callable[[], str]
    memory: Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is sent.

    Attributes:
        seed: Of all cases.
        count: How many.
        workers: How many at once.
        failures: Folder for cases that failed, or None.
        check_every: Cases between two looks at the known answer.
        timeout_s: For one case.
        grows_bytes: By how much memory may grow after the first tenth.
        alive_s: Within what time the probe must answer.
    """

    seed: int
    count: int
    workers: int = 16
    failures: Path | None = None
    check_every: int = 500
    timeout_s: float = 60.0
    grows_bytes: int = 300 * 2**20
    alive_s: float = _ALIVE_S


@dataclass(slots=True)
class Report:
    """What was seen.

    Attributes:
        statuses: Answers by status; 0 for none.
        failures: What went wrong, by kind, with the numbers of the cases.
        wall_s: Of the whole run.
        worst_probe_s: The slowest answer of `/health/live`.
        grown_bytes: Memory at the end over that after the first tenth.
        slowest: Seconds and numbers of the slowest cases.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    failures: dict[str, list[int]] = field(default_factory=dict)
    wall_s: float = 0.0
    worst_probe_s: float = 0.0
    grown_bytes: int = 0
    slowest: list[tuple[float, int]] = field(default_factory=list)

    def fail(self, kind: str, number: int) -> None:
        """Note a failure."""
        self.failures.setdefault(kind, []).append(number)

    def lines(self) -> Iterator[str]:
        """For a person."""
        counts = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        yield f"{self.statuses.total()} requests in {self.wall_s:.0f} s; {counts}"
        grown = f"memory grew by {self.grown_bytes / 2**20:.0f} MiB"
        yield f"worst probe {self.worst_probe_s * 1000:.0f} ms, {grown}"
        yield "slowest: " + ", ".join(f"case {number} {wall_s:.1f} s" for wall_s, number in self.slowest)
        for kind, numbers in self.failures.items():
            yield f"FAILED {len(numbers)} times: {kind}; cases {numbers[:8]}"
        yield "failed" if self.failures else "passed"


async def fuzz(target: Target, plan: Plan, cases: Sequence[Case] | None = None) -> Report:
    """Send all cases of the plan, or those given, and judge everything."""
    return await _Run(target, plan, cases).run()


class _Run:
    def __init__(self, target: Target, plan: Plan, cases: Sequence[Case] | None) -> None:
        self._target, self._plan, self._cases = target, plan, cases
        self._count = plan.count if cases is None else len(cases)
        self._seeds = seeds(target.model)
        self._numbers = iter(range(self._count))
        self._report = Report()
        self._stored = ""
        self._known = ""
        self._memory = 0
        self._done = 0

    async def run(self) -> Report:
        report, target = self._report, self._target
        address = (target.host, target.port)
        self._known = await self._answer()
        await self._store()
        liveness = Liveness(*address)
        liveness.start()
        began_s = time.monotonic()
        try:
            await asyncio.gather(*(self._work() for _ in range(self._plan.workers)))
        finally:
            report.wall_s = time.monotonic() - began_s
            await asyncio.to_thread(liveness.end)
        report.worst_probe_s = liveness.worst_s
        for failure in liveness.failures:
            report.fail(f"the probe failed: {failure}", -1)
        if liveness.worst_s > self._plan.alive_s:
            report.fail(f"the probe took {liveness.worst_s:.2f} s", -1)
        for left in await asyncio.to_thread(left_over, *address, 30.0):
            report.fail(f"left over: {left}", -1)
        await self._check_known(self._count)
        self._check_memory()
        log = target.log()
        for mark in _LOG_FAULTS:
            if mark in log:
                report.fail(f"the log holds {mark!r}", -1)
        report.slowest.sort(reverse=True)
        del report.slowest[5:]
        return report

    async def _work(self) -> None:
        for number in self._numbers:
            case = (
                make_case(self._plan.seed, number, self._seeds)
                if self._cases is None
                else self._cases[number]
            )
            target = self._target
            answer = await send(case, target.host, target.port, self._stored, self._plan.timeout_s)
            self._note(case, answer)
            self._done += 1
            if self._done % self._plan.check_every == 0:
                await self._check_known(number)
                await self._store()
            if self._done == max(1, self._count // 10):
                self._memory = self._target.memory()

    def _note(self, case: Case, answer: Answer) -> None:
        report = self._report
        report.statuses[answer.status] += 1
        report.slowest.append((answer.wall_s, case.number))
        if len(report.slowest) > 1000:
            report.slowest.sort(reverse=True)
            del report.slowest[5:]
        for fault in faults(case, answer):
            report.fail(f"{fault} ({case.method} {case.path[:40]})", case.number)
            if self._plan.failures is not None:
                self._plan.failures.mkdir(parents=True, exist_ok=True)
                case.write(self._plan.failures / f"case-{case.seed}-{case.number}.json")
                shown = f"{fault}\n{answer.status} {answer.headers}\n{answer.body[:4000]!r}\n"
                (self._plan.failures / f"case-{case.seed}-{case.number}.txt").write_text(shown)

    async def _answer(self) -> str:
        target = self._target
        return await asyncio.to_thread(
            known_answer, target.host, target.port, target.model, gives_vectors=target.gives_vectors
        )

    async def _check_known(self, number: int) -> None:
        answer = await self._answer()
        if answer != self._known:
            self._report.fail(f"the known answer was {self._known[:200]!r} and is {answer[:200]!r}", number)

    async def _store(self) -> None:
        """Keep a response, for the cases that read or continue one."""
        if self._target.gives_vectors:
            self._stored = "resp_" + "0" * 32
            return
        body = {"model": self._target.model, "input": "Hi", "max_output_tokens": 1}
        _, raw = await asyncio.to_thread(
            ask, self._target.host, self._target.port, "POST", "/v1/responses", body
        )
        # A busy server may be too slow for it; then the one before stays.
        self._stored = str(json.loads(raw).get("id", self._stored))

    def _check_memory(self) -> None:
        if self._memory:
            self._report.grown_bytes = self._target.memory() - self._memory
            if self._report.grown_bytes > self._plan.grows_bytes:
                self._report.fail(f"memory grew by {self._report.grown_bytes / 2**20:.0f} MiB", -1)
