"""Sends requests to a running server at random times and records when tokens came; knows no percentiles.

Open loop: a request is sent when its time has come, whether or not earlier ones are answered, and its
latency counts from that time. So a server that falls behind is seen to.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from llm_stack_server.bench.http_stream import Endpoint, stream_events
from llm_stack_server.bench.workloads import Workload
from llm_stack_server.errors import ServerError

_DONE = "[DONE]"


@dataclass(slots=True, kw_only=True)
class Answer:
    """What became of a request; times in seconds since it was due.

    Attributes:
        num_prompt_tokens: As sent.
        num_wanted: Tokens asked for.
        num_tokens: Tokens that came, as the server counts them.
        sent_s: When it was sent: more than a little says that this program cannot keep up.
        chunk_s: When each chunk with text or tokens came.
        ended_s: When the answer had ended.
        error: Why it failed; empty if it did not.
    """

    num_prompt_tokens: int
    num_wanted: int
    num_tokens: int = 0
    sent_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    error: str = ""

    @property
    def first_token_s(self) -> float:
        """Time to the first token; of an answer without error."""
        return self.chunk_s[0]

    @property
    def per_token_s(self) -> float | None:
        """Mean time of each token after the first; None where there is none."""
        if self.num_tokens < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) / (self.num_tokens - 1)


def arrival_times(count: int, rate_per_s: float, seed: int) -> list[float]:
    """When requests are due, in seconds from the first: a Poisson process.

    Args:
        count: How many.
        rate_per_s: Mean requests a second; infinite: all at once.
        seed: Of the gaps.

    Raises:
        ServerError: The rate is not above 0.
    """
    if not rate_per_s > 0:
        raise ServerError(f"rate: must be above 0, got {rate_per_s}")
    numbers = random.Random(seed)  # noqa: S311 - no secret
    times = [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + numbers.expovariate(1.0) / rate_per_s)
    return times[:count]


async def run_load(
    endpoint: Endpoint, model: str, workload: Workload, times: Sequence[float], *, temperature: float
) -> list[Answer]:
    """Sends every request of a workload at its time to `/v1/completions`, and waits for all answers.

    Returns:
        One answer a request, in order; failures are told in them.
    """
    clock = asyncio.get_running_loop().time
    begin_s = clock()

    async def one(index: int) -> Answer:
        prompt, wanted = workload.prompts[index], workload.output_lengths[index]
        answer = Answer(num_prompt_tokens=len(prompt), num_wanted=wanted)
        due_s = begin_s + times[index]
        await asyncio.sleep(due_s - clock())
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": wanted,
            "temperature": temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer.sent_s = clock() - due_s
        try:
            async for event in stream_events(endpoint, "/v1/completions", body):
                _take(answer, event, clock() - due_s)
        except (OSError, ServerError, ValueError) as error:
            answer.error = answer.error or f"{type(error).__name__}: {error}"
        answer.ended_s = clock() - due_s
        if not answer.error and (not answer.chunk_s or answer.num_tokens != wanted):
            answer.error = f"got {answer.num_tokens} tokens in place of {wanted}"
        return answer

    return list(await asyncio.gather(*(one(index) for index in range(len(workload.prompts)))))


def _take(answer: Answer, event: str, at_s: float) -> None:
    """Notes what an event of the stream tells."""
    if event == _DONE:
        return
    message = json.loads(event)
    if "error" in message:
        answer.error = str(message["error"].get("message", message["error"]))
        return
    # The last chunk may only say why the answer ended.
    if any(choice.get("text") or not choice.get("finish_reason") for choice in message.get("choices") or ()):
        answer.chunk_s.append(at_s)
    if message.get("usage"):
        answer.num_tokens = int(message["usage"]["completion_tokens"])
