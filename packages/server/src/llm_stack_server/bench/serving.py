"""Measures a running server under random arrivals: latencies, rates and goodput."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from llm_stack_server.bench.http_stream import Endpoint, get_json
from llm_stack_server.bench.load import Answer, arrival_times, run_load
from llm_stack_server.bench.summary import summarize
from llm_stack_server.bench.workloads import Workload
from llm_stack_server.errors import ServerError

LIMITS = ("ttft_ms", "tpot_ms", "e2e_ms")
"""What goodput may demand: times to the first token, of each later token, and to the end."""


def parse_limits(text: str) -> dict[str, float]:
    """From "ttft_ms=200,tpot_ms=50".

    Raises:
        ServerError: A name is unknown or a limit is no number above 0.
    """
    limits = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ServerError(f"goodput: {item!r} must be NAME=MILLISECONDS") from None
        if name not in LIMITS or not limits[name] > 0:
            raise ServerError(f"goodput: must be of {', '.join(LIMITS)}, each above 0, got {item!r}")
    return limits


def measure_server(
    endpoint: Endpoint,
    model: str | None,
    workload: Workload,
    *,
    rate_per_s: float,
    seed: int,
    limits: Mapping[str, float],
    temperature: float,
) -> dict[str, Any]:
    """Sends a workload at a mean rate.

    Args:
        endpoint: The server.
        model: Its name there; None: the first that it lists.
        workload: The requests.
        rate_per_s: Mean requests a second; infinite: all at once.
        seed: Of the arrivals.
        limits: Milliseconds by name of `LIMITS`: requests within all of them count as good.
        temperature: Of the draws.

    Raises:
        ServerError: No request was answered, or the server lists no model.
        OSError: It cannot be reached.
    """
    times = arrival_times(len(workload.prompts), rate_per_s, seed)

    async def measure() -> tuple[str, list[Answer]]:
        name = model or await _first_model(endpoint)
        return name, await run_load(endpoint, name, workload, times, temperature=temperature)

    name, answers = asyncio.run(measure())
    # JSON knows no infinity.
    rate = rate_per_s if math.isfinite(rate_per_s) else None
    return {"model": name, "rate_per_s": rate, "seed": seed, **summarize_answers(answers, times, limits)}


async def _first_model(endpoint: Endpoint) -> str:
    listed = await get_json(endpoint, "/v1/models")
    try:
        return str(listed["data"][0]["id"])
    except (LookupError, TypeError):
        raise ServerError("model: the server lists none; name one") from None


def summarize_answers(
    answers: Sequence[Answer], times: Sequence[float], limits: Mapping[str, float]
) -> dict[str, Any]:
    """Latencies in milliseconds, rates a second over the time to the last answer's end, and goodput.

    Raises:
        ServerError: Every request failed; the first failure is told.
    """
    good = [answer for answer in answers if not answer.error]
    failed = [answer.error for answer in answers if answer.error]
    if not good:
        raise ServerError(f"all {len(answers)} requests failed, the first: {failed[0]}")
    whole_s = max(due + answer.ended_s for due, answer in zip(times, answers, strict=True))
    gaps = [
        1e3 * (later - earlier)
        for answer in good
        for earlier, later in zip(answer.chunk_s, answer.chunk_s[1:], strict=False)
    ]
    found = {
        "requests": len(answers),
        "failed": len(failed),
        "first_failures": failed[:3],
        "duration_s": whole_s,
        "requests_per_s": len(good) / whole_s,
        "input_tokens_per_s": sum(answer.num_prompt_tokens for answer in good) / whole_s,
        "output_tokens_per_s": sum(answer.num_tokens for answer in good) / whole_s,
        "ttft_ms": summarize([1e3 * answer.first_token_s for answer in good]),
        "itl_ms": summarize(gaps),
        "tpot_ms": summarize([1e3 * per for answer in good if (per := answer.per_token_s) is not None]),
        "e2e_ms": summarize([1e3 * answer.ended_s for answer in good]),
        "sent_late_ms": summarize([1e3 * answer.sent_s for answer in answers]),
    }
    if limits:
        within = sum(_is_within(answer, limits) for answer in good)
        found |= {"limits": dict(limits), "good_requests": within, "goodput_per_s": within / whole_s}
    return found


def _is_within(answer: Answer, limits: Mapping[str, float]) -> bool:
    measured = {
        "ttft_ms": 1e3 * answer.first_token_s,
        "tpot_ms": 1e3 * (answer.per_token_s or 0.0),
        "e2e_ms": 1e3 * answer.ended_s,
    }
    return all(measured[name] <= limit for name, limit in limits.items())
