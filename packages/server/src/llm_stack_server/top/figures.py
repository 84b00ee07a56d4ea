"""Turns readings of a server into the figures that are shown. Knows our metrics' names, and no terminal."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llm_stack_server.top.reader import Reading
from llm_stack_server.top.samples import Samples

PREFIX = "llm_stack"  # of our metrics; the module that owns it would bring the engine along
_HISTORY = 120
_LATENCIES = {
    "first token": "time_to_first_token_seconds",
    "between tokens": "inter_token_latency_seconds",
    "whole request": "request_latency_seconds",
}
# Asked by those who watch, this program and the web page among them: they would hide the traffic.
_OWN_ROUTES = re.compile(r"/(page/.*|metrics|version|health(/.*)?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """What one API key has done.

    Attributes:
        requests: Since the server started.
        prompt_tokens: Since then.
        output_tokens: Since then, of requests that have ended.
    """

    requests: float
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is shown of one moment; None stands for what is not known.

    Attributes:
        reading: The reading itself.
        interval_s: Over which rates and quantiles are taken; None with the first reading.
        running: Requests that hold a slot.
        waiting: Requests in the engine's and the server's queue.
        prompt_rate: Prompt tokens a second.
        output_rate: Output tokens a second.
        latencies: p50 and p99 in seconds, by what they are of.
        blocks: KV blocks by state: used, cached, free.
        hit_share: Share of the prompt tokens that the cache held: in the interval, or else since the start.
        preemptions: Since the server started.
        deaths: Of the engine's process, since then.
        finished: Requests that ended, by reason.
        answers: HTTP answers by status since the start, and a second in the interval; no probes.
        keys: What each key has done; empty where the server has no keys.
        history: Earlier values of running, waiting, prompt and output, oldest first.
    """

    reading: Reading
    interval_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    prompt_rate: float | None = None
    output_rate: float | None = None
    latencies: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    blocks: Mapping[str, float] = field(default_factory=dict)
    hit_share: float | None = None
    preemptions: float | None = None
    deaths: float | None = None
    finished: Mapping[str, float] = field(default_factory=dict)
    answers: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    keys: Mapping[str, KeyUse] = field(default_factory=dict)
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Watch:
    """Keeps the last reading and the history of a few values."""

    def __init__(self) -> None:
        self._before: Reading | None = None
        self._history: dict[str, deque[float]] = {
            name: deque(maxlen=_HISTORY) for name in ("running", "waiting", "prompt", "output")
        }

    def take(self, reading: Reading) -> Figures:
        """The figures of a new reading. After one without samples, counting begins anew."""
        before, self._before = self._before, reading
        if reading.samples is None:
            self._note(running=0.0, waiting=0.0, prompt=0.0, output=0.0)
            return Figures(reading=reading, history=self._shown())
        interval_s, added = None, Samples()
        if before is not None and before.samples is not None and reading.time_s > before.time_s:
            interval_s = reading.time_s - before.time_s
            added = reading.samples.since(before.samples)
        return self._figures(reading, reading.samples, added, interval_s)

    def _figures(self, reading: Reading, now: Samples, added: Samples, interval_s: float | None) -> Figures:
        running = _total(now, "requests_running")
        queues = [_total(now, name) for name in ("requests_waiting", "queue_waiting")]
        waiting = None if queues == [None, None] else sum(each or 0.0 for each in queues)
        prompt = _rate(added, "prompt_tokens_total", interval_s)
        output = _rate(added, "generation_tokens_total", interval_s)
        if interval_s is not None:
            self._note(
                running=running or 0.0, waiting=waiting or 0.0, prompt=prompt or 0.0, output=output or 0.0
            )
        return Figures(
            reading=reading,
            interval_s=interval_s,
            running=running,
            waiting=waiting,
            prompt_rate=prompt,
            output_rate=output,
            latencies={
                title: (added.quantile(f"{PREFIX}_{name}", 0.5), added.quantile(f"{PREFIX}_{name}", 0.99))
                for title, name in _LATENCIES.items()
            },
            blocks=now.by_label(f"{PREFIX}_kv_blocks", "state"),
            hit_share=_hit_share(added) if _hit_share(added) is not None else _hit_share(now),
            preemptions=_total(now, "preemptions_total"),
            deaths=_total(now, "core_deaths_total"),
            finished=now.by_label(f"{PREFIX}_engine_requests_finished_total", "reason"),
            answers=_answers(now, added, interval_s),
            keys=_keys(now),
            history=self._shown(),
        )

    def _note(self, **values: float) -> None:
        for name, value in values.items():
            self._history[name].append(value)

    def _shown(self) -> dict[str, Sequence[float]]:
        return {name: tuple(values) for name, values in self._history.items()}


def _total(samples: Samples, name: str) -> float | None:
    return samples.total(f"{PREFIX}_{name}")


def _rate(added: Samples, name: str, interval_s: float | None) -> float | None:
    total = _total(added, name)
    return None if total is None or interval_s is None else total / interval_s


def _hit_share(samples: Samples) -> float | None:
    asked = _total(samples, "prefix_cache_query_tokens_total")
    return (_total(samples, "prefix_cache_hit_tokens_total") or 0.0) / asked if asked else None


def _answers(now: Samples, added: Samples, interval_s: float | None) -> dict[str, tuple[float, float | None]]:
    name = f"{PREFIX}_http_requests_total"
    now = now.without("route", _OWN_ROUTES)
    new = added.without("route", _OWN_ROUTES).by_label(name, "status")
    return {
        status: (count, None if interval_s is None else new.get(status, 0.0) / interval_s)
        for status, count in sorted(now.by_label(name, "status").items())
    }


def _keys(now: Samples) -> dict[str, KeyUse]:
    tokens = f"{PREFIX}_key_tokens_total"
    return {
        key: KeyUse(
            requests=requests,
            prompt_tokens=now.total(tokens, key=key, kind="prompt") or 0.0,
            output_tokens=now.total(tokens, key=key, kind="output") or 0.0,
        )
        for key, requests in sorted(now.by_label(f"{PREFIX}_key_requests_total", "key").items())
    }
