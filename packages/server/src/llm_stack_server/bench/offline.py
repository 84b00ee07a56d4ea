"""Times whole batches through `llm_engine.LLM`; knows nothing of servers."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from llm_stack_server.bench.summary import summarize
from llm_stack_server.bench.workloads import Lengths, Workload, draw_workload
from llm_stack_server.errors import ServerError

if TYPE_CHECKING:
    from llm_engine import LLM

_LEAST_OUTPUT = 2


def run_throughput(llm: "LLM", workload: Workload, *, temperature: float) -> dict[str, Any]:
    """Runs a workload's rounds; rates are of the best one.

    Args:
        llm: The engine.
        workload: Ids at and above the model's vocabulary wrap round.
        temperature: Of the draws.

    Raises:
        ServerError: A request got fewer tokens than it asked for.
    """
    seconds = [_round(llm, workload, index, temperature) for index in range(workload.rounds)]
    best = min(seconds)
    return {
        "workload": workload.name,
        "title": workload.title,
        "requests": len(workload.prompts),
        "input_tokens": workload.num_input_tokens,
        "output_tokens": workload.num_output_tokens,
        "seconds": [round(value, 4) for value in seconds],
        "requests_per_s": len(workload.prompts) / best,
        "input_tokens_per_s": workload.num_input_tokens / best,
        "output_tokens_per_s": workload.num_output_tokens / best,
    }


def run_latency(
    llm: "LLM",
    batch_sizes: Sequence[int],
    prompt: Lengths,
    output: Lengths,
    *,
    rounds: int,
    temperature: float,
) -> Iterator[dict[str, Any]]:
    """Times batches of each size from the call to the last token, after one round to warm up.

    A row gives the seconds of a batch, and the milliseconds of a decode step: what is left of the best batch
    less the best of batches with one token each, over the steps between.

    Raises:
        ServerError: An output of fewer than two tokens, `rounds` or a batch size below 1, or a request got
            fewer tokens than it asked for.
    """
    if rounds < 1:
        raise ServerError(f"rounds: must be at least 1, got {rounds}")
    if output.low < _LEAST_OUTPUT:
        raise ServerError(f"output-tokens: must be at least 2, got {output}")
    for size in batch_sizes:
        # Other prompts in each repetition and in both workloads, so that no prefix is found cached.
        highest = llm.vocab_size - 1
        whole = draw_workload(size, prompt, output, highest_id=highest, seed=0)
        first = draw_workload(size, prompt, Lengths(1, 1), highest_id=highest, seed=1)
        until_first = [_round(llm, first, index, temperature) for index in range(rounds + 1)][1:]
        until_last = [_round(llm, whole, index, temperature) for index in range(rounds + 1)][1:]
        steps = max(whole.output_lengths) - 1
        yield {
            "batch_size": size,
            "input_tokens": str(prompt),
            "output_tokens": str(output),
            "first_token_s": summarize(until_first),
            "last_token_s": summarize(until_last),
            "step_ms": 1e3 * (min(until_last) - min(until_first)) / steps,
            "output_tokens_per_s": whole.num_output_tokens / min(until_last),
        }


def _round(llm: "LLM", workload: Workload, index: int, temperature: float) -> float:
    """Seconds of one repetition, after checking that every request got all its tokens."""
    from llm_engine import SamplingParams

    params = [
        SamplingParams(temperature=temperature, ignore_eos=True, max_tokens=length, detokenize=False)
        for length in workload.output_lengths
    ]
    vocabulary = llm.vocab_size
    prompts = [[token % vocabulary for token in ids] for ids in workload.prompts_of_round(index)]
    started_s = time.perf_counter()
    outputs = llm.generate(prompts, params, progress=False)
    seconds = time.perf_counter() - started_s
    for output, length in zip(outputs, workload.output_lengths, strict=True):
        got = len(output.outputs[0].token_ids)
        if got != length:
            raise ServerError(f"{workload.name}: a request got {got} tokens in place of {length}")
    return seconds
