"""Pairs prompts with parameters and checks all of them before any is queued. Knows nothing of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_engine.errors import ContextLengthExceeded, InvalidRequest
from llm_engine.sampling_params import SamplingParams
from llm_engine.validation import ModelLimits, validate_request

from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import InvalidField
from llm_stack_server.prompts import Prompt
from llm_stack_server.thinking_budget import ThinkingBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One prompt with its parameters, checked, and the limit on its thinking, if it has one."""

    prompt: Prompt
    params: SamplingParams
    thinking: ThinkingBudget | None = None


def limits_of(engine: Engine) -> ModelLimits:
    """What the engine's model can take."""
    return ModelLimits(max_model_len=engine.max_model_len, vocab_size=engine.vocab_size)


def checked_job(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams,
    names: Mapping[str, str],
    thinking: ThinkingBudget | None = None,
) -> Job:
    """Check the pair with the engine's own validator.

    Args:
        engine: Gives the limits.
        prompt: The prompt.
        params: Its parameters.
        names: The engine's field names to those that the client used, where they differ.
        thinking: The limit on its thinking.

    Raises:
        InvalidField: names the client's field.
    """
    try:
        validate_request(prompt.token_ids, params, limits_of(engine))
    except InvalidRequest as error:
        param = names.get(error.field, error.field)
        too_long = isinstance(error, ContextLengthExceeded)
        code = "context_length_exceeded" if too_long else "invalid_value"
        raise InvalidField(param, f"{param}: {error.message}", code=code) from None
    return Job(prompt=prompt, params=params, thinking=thinking)


def checked_jobs(engine: Engine, pairs: Sequence[tuple[Prompt, SamplingParams]]) -> list[Job]:
    """The jobs of a completion request; one bad prompt refuses all, by its index."""
    several = len(pairs) > 1
    return [
        checked_job(engine, prompt, params, {"prompt": f"prompt[{index}]"} if several else {})
        for index, (prompt, params) in enumerate(pairs)
    ]
