"""POST /v1/chat/completions."""

from __future__ import annotations

import uuid
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from llm_stack_server.answering import answer
from llm_stack_server.auth import key_of
from llm_stack_server.cache_use import cache_use
from llm_stack_server.constraint import constrained, constraint
from llm_stack_server.context import context_of
from llm_stack_server.errors import InvalidField
from llm_stack_server.generation import Generation, Usage
from llm_stack_server.ignored_fields import take_note
from llm_stack_server.jobs import checked_job
from llm_stack_server.metering import meter_of
from llm_stack_server.params import chat_limit_name, chat_params, check_stream_options
from llm_stack_server.prompts import ChatOptions, chat_prompt
from llm_stack_server.reading import choice_reader, shows_marks
from llm_stack_server.request_body import read_body
from llm_stack_server.schemas.chat import ChatRequest, refuse_replayed
from llm_stack_server.schemas.known_fields import unknown_fields
from llm_stack_server.thinking import ThinkingPlan, ThinkingWish, budget_of, thinking_plan
from llm_stack_server.tool_use import ToolUse, tool_use
from llm_stack_server.usage_limits import permit_of
from llm_stack_server.views.chat import ChatView
from llm_stack_server.views.tokens import TokenTexts
from llm_stack_server.views.view import Envelope

router = APIRouter()
PATH = "/v1/chat/completions"


@router.post(PATH)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or streamed."""
    context = context_of(request)
    engine = context.lifecycle.require_engine()
    body = await read_body(request, ChatRequest)
    model = context.check_model(body.model)
    check_stream_options(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidField("top_logprobs", "top_logprobs needs logprobs to be true")
    refuse_replayed(body.messages)
    headers = take_note(context, PATH, body, unknown_fields(body.model_extra or {}, n=body.n or 1))
    output_format = context.output_format(engine)
    use = tool_use(
        body.tools or [], body.tool_choice, output_format, single=body.parallel_tool_calls is False
    )
    params = chat_params(body, engine.default_sampling_params)
    if shows_marks(output_format, use):
        params = replace(params, skip_special_tokens=body.skip_special_tokens or False)
    template = engine.tokenizer.chat_template or ""
    thinking = thinking_plan(template, output_format, _wish(body), body.chat_template_kwargs)
    prompt = await chat_prompt(engine, body.messages, _options(body, use, thinking))
    wanted = constraint(body, output_format, use, prompt.text or "")
    if wanted is not None:
        params = constrained(params, wanted)
    names = {"prompt": "messages", "max_tokens": chat_limit_name(body)}
    budget = budget_of(thinking, output_format, prompt, params)
    job = checked_job(engine, prompt, params, names, budget)
    answer_id = f"chatcmpl-{uuid.uuid4().hex}"
    usage = Usage()
    view = ChatView(
        Envelope(answer_id=answer_id, model=model, fingerprint=context.fingerprint()),
        TokenTexts(engine),
        [choice_reader(output_format, use, prompt, usage) for _ in range(params.n)],
        logprobs=bool(body.logprobs),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    generation = Generation(
        engine,
        answer_id,
        [job],
        meter_of(request, PATH, model, params),
        body.priority or 0,
        usage=usage,
        grammar_field=None if wanted is None else wanted.field,
        admission=permit_of(request),
        cache=cache_use(key_of(request), body.cache_salt, by_key=context.settings.isolate_cache_by_key),
    )
    return await answer(request, generation, view, stream=bool(body.stream), headers=headers)


def _wish(body: ChatRequest) -> ThinkingWish:
    """What the body says of thinking."""
    return ThinkingWish(
        field="reasoning_effort",
        effort=body.reasoning_effort,
        budget=body.thinking_token_budget,
        budget_field="thinking_token_budget",
    )


def _options(body: ChatRequest, use: ToolUse, thinking: ThinkingPlan) -> ChatOptions:
    return ChatOptions(
        tools=use.for_template,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables={**thinking.variables, **(body.chat_template_kwargs or {})},
    )
