"""Generation over gRPC: requests to jobs, deltas to messages. Knows nothing of keys, limits or sockets."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

from llm_engine.outputs import RequestDelta, TokenLogprobs
from pydantic import ValidationError

from llm_stack_server.cache_use import cache_use
from llm_stack_server.constraint import Constraint, constrained, constraint
from llm_stack_server.errors import ApiError, InvalidField
from llm_stack_server.generation import Generation, Usage
from llm_stack_server.grpc_api.calls import Call, Message
from llm_stack_server.grpc_api.messages import given_fields, message_class
from llm_stack_server.http_errors import to_api_error
from llm_stack_server.jobs import Job, checked_job
from llm_stack_server.metering import RequestMeter
from llm_stack_server.params import chat_params, completion_params
from llm_stack_server.pooling_calls import check_engine_generates
from llm_stack_server.prompts import ChatOptions, chat_prompt, completion_prompts
from llm_stack_server.schemas.chat import ChatRequest
from llm_stack_server.schemas.completion import CompletionRequest
from llm_stack_server.tool_use import ToolUse

_DELTA = message_class("Delta")
_USAGE = message_class("Usage")
_EVENT = message_class("GenerateEvent")
_RESPONSE = message_class("GenerateResponse")
_LOGPROB = message_class("TokenLogprob")
_INPUTS = ("prompt", "prompt_token_ids", "messages")
_FINISH_REASONS = {None: 0, "stop": 1, "length": 2}


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """A checked request, ready to run."""

    generation: Generation
    answer_id: str
    model: str


async def generate(request: Message, call: Call) -> Message:
    """The whole answer."""
    work = await _work(request, call, "grpc:Generate")
    choices: dict[int, list[RequestDelta]] = {index: [] for index in range(work.generation.num_choices)}
    deltas = work.generation.deltas()
    try:
        async for event in deltas:
            choices[event.choice].append(event.delta)
    finally:
        await deltas.aclose()
    return _RESPONSE(
        id=work.answer_id,
        model=work.model,
        choices=[_joined(index, parts) for index, parts in choices.items()],
        usage=_usage(work.generation.usage),
    )


async def generate_stream(request: Message, call: Call) -> None:
    """The deltas as they come, then the usage."""
    work = await _work(request, call, "grpc:GenerateStream")
    deltas = work.generation.deltas()
    try:
        async for event in deltas:
            delta = _joined(event.choice, [event.delta])
            await call.write(_EVENT(id=work.answer_id, model=work.model, delta=delta))
    finally:
        await deltas.aclose()
    await call.write(_EVENT(id=work.answer_id, model=work.model, usage=_usage(work.generation.usage)))


async def _work(request: Message, call: Call, route: str) -> _Work:
    engine = call.context.lifecycle.require_engine()
    check_engine_generates(engine)
    fields = given_fields(request)
    given = [name for name in _INPUTS if name in fields]
    if len(given) != 1:
        param = given[1] if given else "prompt"
        raise InvalidField(param, f"{param}: give exactly one of {', '.join(_INPUTS)}")
    model = call.context.check_model(fields.pop("model", None))
    job, wanted = await (_of_messages if given == ["messages"] else _of_prompt)(call, fields)
    call.record.asks(model, job.params)
    answer_id = f"gen-{uuid.uuid4().hex}"
    generation = Generation(
        engine,
        answer_id,
        [job],
        RequestMeter(call.context.metrics, route, call.record),
        fields.get("priority", 0),
        grammar_field=None if wanted is None else wanted.field,
        admission=call.permit,
        cache=cache_use(
            call.key, fields.get("cache_salt"), by_key=call.context.settings.isolate_cache_by_key
        ),
    )
    return _Work(generation, answer_id, model)


async def _of_prompt(call: Call, fields: dict[str, Any]) -> tuple[Job, Constraint | None]:
    engine = call.context.lifecycle.require_engine()
    field = "prompt" if "prompt" in fields else "prompt_token_ids"
    body = CompletionRequest.model_validate({**fields, "prompt": fields[field]})
    add_special_tokens = body.add_special_tokens is not False
    [prompt] = await completion_prompts(engine, body.prompt, add_special_tokens=add_special_tokens)
    room = engine.max_model_len - len(prompt.token_ids)
    params = completion_params(body, engine.default_sampling_params, room_tokens=room)
    wanted = constraint(body, None, ToolUse(), "")
    if wanted is not None:
        params = constrained(params, wanted)
    return checked_job(engine, prompt, params, {"prompt": field}), wanted


async def _of_messages(call: Call, fields: Mapping[str, Any]) -> tuple[Job, Constraint | None]:
    context = call.context
    engine = context.lifecycle.require_engine()
    if "add_special_tokens" in fields:
        raise InvalidField("add_special_tokens", "add_special_tokens: the chat template decides, not a flag")
    wants_logprobs = "logprobs" in fields
    more = {"logprobs": True, "top_logprobs": fields["logprobs"]} if wants_logprobs else {}
    try:
        body = ChatRequest.model_validate({**fields, **more})
        params = chat_params(body, engine.default_sampling_params)
    except (ValidationError, InvalidField) as error:
        raise _named_here(to_api_error(error)) from None
    options = ChatOptions(
        add_generation_prompt=body.add_generation_prompt, continue_final_message=body.continue_final_message
    )
    prompt = await chat_prompt(engine, body.messages, options)
    wanted = constraint(body, context.output_format(engine), ToolUse(), prompt.text or "")
    if wanted is not None:
        params = constrained(params, wanted)
    return checked_job(engine, prompt, params, {"prompt": "messages"}), wanted


def _named_here(error: ApiError) -> ApiError:
    """What chat calls ``top_logprobs`` is ``logprobs`` here."""
    if error.param != "top_logprobs":
        return error
    return InvalidField("logprobs", error.message.replace("top_logprobs", "logprobs"))


# Messages


def _joined(index: int, parts: list[RequestDelta]) -> Message:
    last = parts[-1]
    delta = _DELTA(
        index=index,
        text="".join(part.text for part in parts),
        token_ids=[token for part in parts for token in part.token_ids],
        logprobs=[_logprob(entry) for part in parts for entry in part.logprobs or ()],
        finish_reason=_FINISH_REASONS[last.finish_reason],
    )
    if isinstance(last.stop_reason, str):
        delta.stop_string = last.stop_reason
    elif last.stop_reason is not None:
        delta.stop_token_id = last.stop_reason
    return delta


def _logprob(entry: TokenLogprobs) -> Message:
    top = [{"token_id": token_id, "logprob": logprob} for token_id, logprob in entry.top]
    return _LOGPROB(token_id=entry.token_id, logprob=entry.logprob, rank=entry.rank, top=top)


def _usage(usage: Usage) -> Message:
    return _USAGE(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )
