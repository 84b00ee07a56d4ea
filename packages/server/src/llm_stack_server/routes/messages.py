"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic has them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from llm_engine.errors import InvalidRequest
from llm_engine.sampling_params import SamplingParams
from starlette.responses import Response

from llm_stack_server.answering import answer
from llm_stack_server.auth import key_of
from llm_stack_server.cache_use import cache_use
from llm_stack_server.constraint import constrained, constraint
from llm_stack_server.context import Context, context_of
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import InvalidField, UnsupportedField
from llm_stack_server.generation import Generation, Usage
from llm_stack_server.ignored_fields import take_note
from llm_stack_server.jobs import checked_job
from llm_stack_server.metering import meter_of
from llm_stack_server.output_formats.format import Format
from llm_stack_server.prompt_caching import cache_plan
from llm_stack_server.prompts import ChatOptions, Prompt, chat_prompt
from llm_stack_server.reading import choice_reader, shows_marks
from llm_stack_server.request_body import read_body
from llm_stack_server.schemas.known_fields import unknown_message_api_fields
from llm_stack_server.schemas.messages import MessagesPrompt, MessagesRequest
from llm_stack_server.schemas.tools import NamedFunction, NamedToolChoice, ToolChoice
from llm_stack_server.streaming import NAMED_EVENTS
from llm_stack_server.thinking import (
    ThinkingPlan,
    ThinkingWish,
    budget_of,
    switches_of,
    thinking_plan,
)
from llm_stack_server.tool_use import ToolUse, tool_use
from llm_stack_server.usage_limits import permit_of
from llm_stack_server.views.messages import MessagesView

router = APIRouter()
PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"


@router.post(PATH)
async def messages(request: Request) -> Response:
    """Answer a conversation with one message, whole or streamed."""
    context = context_of(request)
    engine = context.lifecycle.require_engine()
    body = await read_body(request, MessagesRequest)
    model = context.check_model(body.model)
    headers = _note_unknown(context, body, PATH)
    output_format = context.output_format(engine)
    use = _tool_use(body, output_format)
    params = _params(body, engine.default_sampling_params)
    if shows_marks(output_format, use):
        params = replace(params, skip_special_tokens=False)
    thinking = _thinking(engine, body, output_format)
    prompt = await _prompt(engine, body, use, thinking)
    beginning = partial(_beginning, engine, use=use, thinking=thinking)
    plan = await cache_plan(body, prompt.token_ids, beginning)
    wanted = constraint(None, output_format, use, prompt.text or "")
    if wanted is not None:
        params = constrained(params, wanted)
    names = {"prompt": "messages", "stop": "stop_sequences"}
    budget = budget_of(thinking, output_format, prompt, params)
    job = checked_job(engine, prompt, params, names, budget)
    message_id = f"msg_{uuid.uuid4().hex}"
    usage = Usage()
    view = MessagesView(message_id, model, choice_reader(output_format, use, prompt, usage), usage, plan)
    generation = Generation(
        engine,
        message_id,
        [job],
        meter_of(request, PATH, model, params),
        usage=usage,
        admission=permit_of(request),
        grammar_field=None if wanted is None else wanted.field,
        cache=cache_use(
            key_of(request),
            body.cache_salt,
            by_key=context.settings.isolate_cache_by_key,
            pins=plan.pins,
        ),
    )
    return await answer(
        request,
        generation,
        view,
        stream=bool(body.stream),
        headers=headers,
        framing=NAMED_EVENTS,
    )


@router.post(COUNT_PATH)
async def count_tokens(request: Request) -> JSONResponse:
    """The tokens of a prompt as `messages` would render it."""
    context = context_of(request)
    engine = context.lifecycle.require_engine()
    body = await read_body(request, MessagesPrompt)
    context.check_model(body.model)
    headers = _note_unknown(context, body, COUNT_PATH)
    output_format = context.output_format(engine)
    use, thinking = _tool_use(body, output_format), _thinking(engine, body, output_format)
    prompt = await _prompt(engine, body, use, thinking)
    beginning = partial(_beginning, engine, use=use, thinking=thinking)
    await cache_plan(body, prompt.token_ids, beginning)
    return JSONResponse({"input_tokens": len(prompt.token_ids)}, headers=headers)


def _note_unknown(context: Context, body: MessagesPrompt, path: str) -> dict[str, str]:
    return take_note(context, path, body, unknown_message_api_fields(body.model_extra or {}))


def _tool_use(body: MessagesPrompt, output_format: Format | None) -> ToolUse:
    for index, tool in enumerate(body.tools or []):
        if tool.type not in (None, "custom"):
            param = f"tools[{index}].type"
            raise UnsupportedField(param, f"{param}: tools that the server runs itself are not supported")
    choice = body.tool_choice
    wanted: ToolChoice | None = None
    if choice is not None:
        if choice.type == "tool":
            if choice.name is None:
                raise InvalidField("tool_choice.name", "tool_choice.name is required with type 'tool'")
            wanted = NamedToolChoice(type="function", function=NamedFunction(name=choice.name))
        else:
            wanted = "required" if choice.type == "any" else choice.type
    return tool_use(
        [tool.as_tool() for tool in body.tools or []],
        wanted,
        output_format,
        single=choice is not None and choice.disable_parallel_tool_use is True,
    )


def _params(body: MessagesRequest, defaults: SamplingParams) -> SamplingParams:
    given = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k")}
    same = {name: value for name, value in given.items() if value is not None}
    try:
        return replace(defaults, **same, max_tokens=body.max_tokens, stop=body.stop_sequences)
    except InvalidRequest as error:
        param = "stop_sequences" if error.field == "stop" else error.field
        raise InvalidField(param, f"{param}: {error.message}") from None


def _variables(body: MessagesPrompt, thinking: ThinkingPlan) -> dict[str, object]:
    return {**thinking.variables, **(body.chat_template_kwargs or {})}


async def _prompt(engine: Engine, body: MessagesPrompt, use: ToolUse, thinking: ThinkingPlan) -> Prompt:
    """Render the conversation. A last turn of the assistant is continued.

    Raises:
        InvalidField: that turn ends with white space, which no model would go on from.
    """
    turns = body.chat_turns()
    is_continued = body.is_continued()
    if is_continued and (turns[-1].content or "").rstrip() != (turns[-1].content or ""):
        raise InvalidField(
            "messages", "messages: the last turn of the assistant must not end with white space"
        )
    options = ChatOptions(
        continue_final_message=is_continued, variables=_variables(body, thinking), tools=use.for_template
    )
    return await chat_prompt(engine, turns, options)


async def _beginning(
    engine: Engine, body: MessagesPrompt, *, use: ToolUse, thinking: ThinkingPlan
) -> list[int]:
    """The tokens of a conversation that ends with the body's last block."""
    options = ChatOptions(
        add_generation_prompt=False, variables=_variables(body, thinking), tools=use.for_template
    )
    return (await chat_prompt(engine, body.chat_turns(), options)).token_ids


def _thinking(engine: Engine, body: MessagesPrompt, output_format: Format | None) -> ThinkingPlan:
    """How the body's wish is met. Without one the model does not think, as far as it can be told."""
    template = engine.tokenizer.chat_template or ""
    given, wanted = body.chat_template_kwargs, body.thinking
    if wanted is None or wanted.type == "adaptive":
        return ThinkingPlan("thinking", switches_of(template, thinks=wanted is not None))
    wish = ThinkingWish(
        field="thinking",
        thinks=wanted.type == "enabled",
        budget=wanted.budget_tokens if wanted.type == "enabled" else None,
        budget_field="thinking.budget_tokens",
    )
    return thinking_plan(template, output_format, wish, given)
