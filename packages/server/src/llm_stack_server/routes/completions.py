"""POST /v1/completions."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request
from starlette.responses import Response

from llm_stack_server.answering import answer
from llm_stack_server.auth import key_of
from llm_stack_server.cache_use import cache_use
from llm_stack_server.constraint import constrained, constraint
from llm_stack_server.context import context_of
from llm_stack_server.engine_port import Engine
from llm_stack_server.generation import Generation
from llm_stack_server.ignored_fields import take_note
from llm_stack_server.jobs import Job, checked_jobs
from llm_stack_server.metering import meter_of
from llm_stack_server.params import check_stream_options, completion_params
from llm_stack_server.prompts import Prompt, completion_prompts
from llm_stack_server.request_body import read_body
from llm_stack_server.schemas.completion import CompletionRequest
from llm_stack_server.schemas.known_fields import unknown_fields
from llm_stack_server.tool_use import ToolUse
from llm_stack_server.usage_limits import permit_of
from llm_stack_server.views.completion import CompletionView, EchoPrompt
from llm_stack_server.views.tokens import TokenTexts
from llm_stack_server.views.view import Envelope

router = APIRouter()
PATH = "/v1/completions"


@router.post(PATH)
async def completions(request: Request) -> Response:
    """Continue one or several prompts, whole or streamed."""
    context = context_of(request)
    engine = context.lifecycle.require_engine()
    body = await read_body(request, CompletionRequest)
    model = context.check_model(body.model)
    check_stream_options(body)
    headers = take_note(context, PATH, body, unknown_fields(body.model_extra or {}, n=body.n or 1))
    add_special_tokens = body.add_special_tokens is not False
    prompts = await completion_prompts(engine, body.prompt, add_special_tokens=add_special_tokens)
    room = engine.max_model_len
    defaults = engine.default_sampling_params
    pairs = [
        (prompt, completion_params(body, defaults, room_tokens=room - len(prompt.token_ids)))
        for prompt in prompts
    ]
    wanted = constraint(body, None, ToolUse(), "")
    if wanted is not None:
        pairs = [(prompt, constrained(params, wanted)) for prompt, params in pairs]
    jobs = checked_jobs(engine, pairs)
    answer_id = f"cmpl-{uuid.uuid4().hex}"
    generation = Generation(
        engine,
        answer_id,
        jobs,
        meter_of(request, PATH, model, jobs[0].params),
        body.priority or 0,
        admission=permit_of(request),
        cache=cache_use(key_of(request), body.cache_salt, by_key=context.settings.isolate_cache_by_key),
        grammar_field=None if wanted is None else wanted.field,
    )
    envelope = Envelope(answer_id=answer_id, model=model, fingerprint=context.fingerprint())
    view = _view(engine, body, jobs, envelope)
    return await answer(request, generation, view, stream=bool(body.stream), headers=headers)


def _view(engine: Engine, body: CompletionRequest, jobs: list[Job], envelope: Envelope) -> CompletionView:
    # Only logprobs need offsets, and only they need a tokenizer here.
    hides_special = body.logprobs is not None and body.skip_special_tokens is not False
    return CompletionView(
        envelope,
        TokenTexts(engine),
        num_choices=sum(job.params.n for job in jobs),
        hidden=engine.tokenizer.special_token_ids if hides_special else frozenset(),
        logprobs=body.logprobs is not None,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        echo=[_echo(engine, job.prompt) for job in jobs] if body.echo else None,
    )


def _echo(engine: Engine, prompt: Prompt) -> EchoPrompt:
    text = prompt.text
    if text is None:
        text = engine.tokenizer.decode(prompt.token_ids, skip_special_tokens=True)
    return EchoPrompt(token_ids=prompt.token_ids, text=text)
