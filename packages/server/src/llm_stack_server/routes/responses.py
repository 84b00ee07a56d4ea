"""OpenAI's /v1/responses: create (whole, streamed, in the background), read, cancel, delete."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from llm_engine.errors import InvalidRequest
from llm_engine.sampling_params import SamplingParams
from starlette.responses import Response

from llm_stack_server.answering import event_stream
from llm_stack_server.asgi import Scope
from llm_stack_server.auth import key_of
from llm_stack_server.cache_use import cache_use
from llm_stack_server.constraint import constrained, constraint
from llm_stack_server.context import Context, context_of
from llm_stack_server.deadline import Deadline, deadline_of, until_deadline
from llm_stack_server.disconnect import until_disconnect
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import ApiError, InvalidField, UnsupportedField
from llm_stack_server.generation import Generation, Usage
from llm_stack_server.http_errors import log_fault, to_api_error
from llm_stack_server.ignored_fields import take_note
from llm_stack_server.jobs import checked_job
from llm_stack_server.mcp_tools.rounds import MOST_CALLS, McpRounds, written_out
from llm_stack_server.metering import meter_of
from llm_stack_server.observing.record import note_error
from llm_stack_server.prompts import ChatOptions, chat_prompt
from llm_stack_server.reading import choice_reader, shows_marks
from llm_stack_server.request_body import read_body
from llm_stack_server.response_runs import OneGeneration, Run
from llm_stack_server.response_shelf import StoredResponse
from llm_stack_server.schemas.chat import ChatMessage
from llm_stack_server.schemas.known_fields import unknown_responses_fields
from llm_stack_server.schemas.responses import FunctionTool, Item, NamedChoice, ResponsesRequest, chat_turns
from llm_stack_server.schemas.structured import StructuredFields
from llm_stack_server.schemas.tools import MAX_TOOLS, Tool, check_names
from llm_stack_server.streaming import EVENTS_WITHOUT_END, frames
from llm_stack_server.thinking import ThinkingWish, budget_of, thinking_plan
from llm_stack_server.tool_use import tool_use
from llm_stack_server.usage_limits import permit_of
from llm_stack_server.views.choice_reader import ChoiceReader
from llm_stack_server.views.mcp_calls import CalledTool, McpResponsesView
from llm_stack_server.views.responses import ResponsesView
from llm_stack_server.views.tokens import TokenTexts
from llm_stack_server.views.view import Event

router = APIRouter()
PATH = "/v1/responses"
# As this API spells them.
_FIELD_NAMES = {"response_format": "text.format"}
_INCLUDE = frozenset({"message.output_text.logprobs", "reasoning.encrypted_content"})


@dataclass(frozen=True, slots=True)
class _Work:
    """A checked request, ready to run."""

    view: ResponsesView
    run: Run
    items: list[Item]
    owner: str
    stores: bool
    deadline: Deadline | None


@router.post(PATH)
async def create(request: Request) -> Response:
    """Answer the input items; with ``store`` (the default) the response is kept."""
    context = context_of(request)
    engine = context.lifecycle.require_engine()
    body = await read_body(request, ResponsesRequest)
    headers = take_note(context, PATH, body, unknown_responses_fields(body.model_extra or {}))
    work = await _work(context, engine, body, request)
    if body.background:
        return JSONResponse(await _start_in_background(context, work), headers=headers)
    if body.stream:
        try:
            await until_disconnect(request.receive, work.run.start())
        except BaseException:
            await work.run.aclose()  # its first token may have come at the moment of the end
            raise
        return event_stream(
            context, frames(_events(context, work, request.scope), EVENTS_WITHOUT_END), headers
        )
    answer = await until_disconnect(request.receive, work.run.whole())
    await _keep(context, work, answer)
    return JSONResponse(answer, headers=headers)


@router.get(PATH + "/{response_id}")
async def read(request: Request, response_id: str) -> JSONResponse:
    """A kept response as it stands."""
    return JSONResponse((await _stored(request, response_id)).response)


@router.get(PATH + "/{response_id}/input_items")
async def input_items(request: Request, response_id: str) -> JSONResponse:
    """The items that a kept response answered."""
    stored = await _stored(request, response_id)
    data = [item.model_dump(exclude_none=True) for item in stored.items]
    return JSONResponse({"object": "list", "data": data, "has_more": False})


@router.post(PATH + "/{response_id}/cancel")
async def cancel(request: Request, response_id: str) -> JSONResponse:
    """End a response that runs in the background; of one that has ended nothing changes."""
    stored = await _stored(request, response_id)
    if stored.response.get("background") is not True:
        raise ApiError(400, "only responses in the background can be cancelled", code="not_cancellable")
    if stored.is_running:
        await context_of(request).responses.cancel(response_id)
    return JSONResponse((await _stored(request, response_id)).response)


@router.delete(PATH + "/{response_id}")
async def delete(request: Request, response_id: str) -> JSONResponse:
    """Forget a response; one that runs is ended."""
    stored = await _stored(request, response_id)
    responses = context_of(request).responses
    if stored.is_running:
        await responses.cancel(response_id)
    await responses.remove(response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


async def _stored(request: Request, response_id: str) -> StoredResponse:
    stored = await context_of(request).responses.get(response_id, key_of(request))
    if stored is None:
        raise ApiError(404, f"there is no response {response_id[:100]!r}", code="not_found")
    return stored


# Creating


async def _work(context: Context, engine: Engine, body: ResponsesRequest, request: Request) -> _Work:
    _check_supported(body)
    owner = key_of(request)
    stores = body.store is not False and context.settings.max_stored_responses > 0
    if body.background and not stores:
        raise InvalidField("background", "background: a response in the background must be stored")
    model = context.check_model(body.model)
    rounds = _Rounds(context, engine, body, request, model)
    items = [*await _earlier(context, body, owner), *body.input]
    servers = {
        tool.server_label: tool
        for index, entry in enumerate(body.tools or [])
        if entry.type == "mcp"
        for tool in [context.mcp_servers.checked(index, entry.model_dump(exclude_unset=True))]
    }
    listed = {label: await context.mcp_servers.tools(tool) for label, tool in servers.items()}
    rounds.offer([tool.spec for tools in listed.values() for tool in tools])
    first = await rounds(written_out(items), is_first=True, may_call=True)
    generation, reader = first
    head = _head(rounds.response_id, model, body, generation.jobs[0].params)
    texts, logprobs = TokenTexts(engine), generation.jobs[0].params.logprobs is not None
    run: Run
    if servers:
        known = {
            tool.spec.function.name: CalledTool(label, tool.needs_approval)
            for label, tools in listed.items()
            for tool in tools
        }
        mcp_view = McpResponsesView(head, texts, known, reader, logprobs=logprobs)
        run = mcp_rounds = McpRounds(
            view=mcp_view,
            usage=rounds.usage,
            make=rounds,
            servers=context.mcp_servers,
            tools=servers,
            listed=listed,
            items=items,
            first=first,
            most_calls=_most_calls(body),
        )
        mcp_rounds.check()
        view: ResponsesView = mcp_view
    else:
        view = ResponsesView(head, reader, texts, logprobs=logprobs)
        run = OneGeneration(view, generation)
    return _Work(view, run, items, owner, stores, deadline_of(request))


def _most_calls(body: ResponsesRequest) -> int:
    return MOST_CALLS if body.max_tool_calls is None else min(body.max_tool_calls, MOST_CALLS)


class _Rounds:
    """Makes the generations of one request. Implements `mcp_tools.rounds.RoundMaker`."""

    def __init__(
        self, context: Context, engine: Engine, body: ResponsesRequest, request: Request, model: str
    ) -> None:
        self.usage = Usage()
        self.response_id = f"resp_{uuid.uuid4().hex}"
        self._context, self._engine, self._body, self._request = context, engine, body, request
        self._model = model
        self._tools = body.chat_tools()
        self._number = 0

    def offer(self, tools: Sequence[Tool]) -> None:
        """Offer these tools besides the client's functions.

        Raises:
            InvalidField: two tools have one name, or there are too many.
        """
        self._tools = [*self._tools, *tools]
        try:
            check_names(tool.function.name for tool in self._tools)
        except ValueError as error:
            raise InvalidField("tools", f"tools: {error}; see allowed_tools") from None
        if len(self._tools) > MAX_TOOLS:
            raise InvalidField("tools", f"tools: more than {MAX_TOOLS} in all; see allowed_tools")

    async def __call__(
        self, items: Sequence[Item], *, is_first: bool, may_call: bool
    ) -> tuple[Generation, ChoiceReader]:
        """A generation over ``items``. What the request demands of its tools, it demands once."""
        context, engine, body = self._context, self._engine, self._body
        output_format = context.output_format(engine)
        choice = (body.chat_choice() if is_first else None) if may_call else "none"
        use = tool_use(self._tools, choice, output_format, single=body.parallel_tool_calls is False)
        params = _params(body, engine.default_sampling_params)
        if shows_marks(output_format, use):
            params = replace(params, skip_special_tokens=False)
        template = engine.tokenizer.chat_template or ""
        thinking = thinking_plan(template, output_format, _wish(body), body.chat_template_kwargs)
        variables = {**thinking.variables, **(body.chat_template_kwargs or {})}
        options = ChatOptions(variables=variables, tools=use.for_template)
        prompt = await chat_prompt(engine, _turns(body, items), options)
        fields = StructuredFields(response_format=body.response_format())
        wanted = constraint(fields, output_format, use, prompt.text or "")
        if wanted is not None:
            params = constrained(params, wanted)
        names = {"prompt": "input", "max_tokens": "max_output_tokens"}
        budget = budget_of(thinking, output_format, prompt, params)
        job = checked_job(engine, prompt, params, names, budget)
        self._number += 1
        generation = Generation(
            engine,
            self.response_id if self._number == 1 else f"{self.response_id}-{self._number}",
            [job],
            meter_of(self._request, PATH, self._model, params),
            usage=self.usage,
            admission=permit_of(self._request),
            cache=cache_use(
                key_of(self._request), body.cache_salt, by_key=context.settings.isolate_cache_by_key
            ),
            grammar_field=None if wanted is None else _FIELD_NAMES.get(wanted.field, wanted.field),
        )
        return generation, choice_reader(output_format, use, prompt, self.usage)


def _check_supported(body: ResponsesRequest) -> None:
    if body.truncation == "auto":
        raise UnsupportedField("truncation", "truncation: only 'disabled' is supported")
    for index, name in enumerate(body.include or []):
        if name not in _INCLUDE:
            raise UnsupportedField(f"include[{index}]", f"include[{index}]: {name[:60]!r} is not supported")
    summary = body.reasoning.summary if body.reasoning is not None else None
    if summary in ("concise", "detailed"):
        raise UnsupportedField(
            "reasoning.summary", "reasoning.summary: thinking is told as it is, never summed up"
        )
    if body.background and body.stream:
        raise UnsupportedField(
            "background", "background: a stream of a response in the background is not supported"
        )


async def _earlier(context: Context, body: ResponsesRequest, owner: str) -> Sequence[Item]:
    """The conversation that ``previous_response_id`` continues, with its answer."""
    if body.previous_response_id is None:
        return ()
    stored = await context.responses.get(body.previous_response_id, owner)
    if stored is None or stored.is_running:
        raise ApiError(
            400 if stored is not None else 404,
            f"previous_response_id: there is no finished response {body.previous_response_id[:100]!r}",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return [*stored.items, *(Item.model_validate(item) for item in stored.response["output"])]


def _turns(body: ResponsesRequest, items: Sequence[Item]) -> list[ChatMessage]:
    """The conversation; the instructions are this response's alone."""
    turns = chat_turns(items)
    if body.instructions:
        turns.insert(0, ChatMessage(role="system", content=body.instructions))
    return turns


def _params(body: ResponsesRequest, defaults: SamplingParams) -> SamplingParams:
    given = {name: getattr(body, name) for name in ("temperature", "top_p", "seed")}
    same = {name: value for name, value in given.items() if value is not None}
    wants_logprobs = "message.output_text.logprobs" in (body.include or [])
    logprobs = body.top_logprobs or (0 if wants_logprobs else None)
    try:
        return replace(defaults, **same, max_tokens=body.max_output_tokens, logprobs=logprobs)
    except InvalidRequest as error:
        raise InvalidField(error.field, f"{error.field}: {error.message}") from None


def _wish(body: ResponsesRequest) -> ThinkingWish:
    """What the body says of thinking."""
    return ThinkingWish(field="reasoning.effort", effort=body.reasoning.effort if body.reasoning else None)


def _head(response_id: str, model: str, body: ResponsesRequest, params: SamplingParams) -> Event:
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": {"format": _shown_format(body)},
        "tool_choice": _shown_choice(body),
        "tools": [_shown_tool(tool) for tool in body.tools or []],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
    }


def _shown_format(body: ResponsesRequest) -> object:
    given = body.text.format if body.text is not None else None
    return {"type": "text"} if given is None else given.model_dump(exclude_none=True, by_alias=True)


def _shown_tool(tool: FunctionTool) -> Event:
    if tool.type != "mcp":
        return tool.model_dump()
    return tool.model_dump(exclude_none=True, exclude={"authorization"})  # a secret is not told again


def _shown_choice(body: ResponsesRequest) -> object:
    if isinstance(body.tool_choice, NamedChoice):
        return body.tool_choice.model_dump()
    return body.tool_choice or "auto"


# Running


async def _events(context: Context, work: _Work, scope: Scope) -> AsyncGenerator[Event, None]:
    """The events of a stream. An error after the first is the event that ends it."""
    events = work.run.events()
    if work.deadline is not None:
        events = until_deadline(events, work.deadline, context.metrics)
    try:
        async for event in events:
            yield event
    except Exception as error:  # noqa: BLE001 -- told to the client and logged; the status is already sent
        log_fault(error)
        api_error = to_api_error(error)
        note_error(scope, api_error)
        failure = work.view.failure(api_error)
        await _keep(context, work, failure["response"])
        yield failure
        return
    finally:
        await events.aclose()
    await _keep(context, work, work.view.whole(work.run.usage))


async def _start_in_background(context: Context, work: _Work) -> Event:
    """Keep the response as queued, and begin."""
    queued = StoredResponse(work.owner, work.view.response(None, "queued"), work.items, is_running=True)
    await context.responses.put(queued)
    context.background.start(queued.response_id, _run_in_background(context, work))
    return queued.response


async def _run_in_background(context: Context, work: _Work) -> None:
    """Run to the end, whatever it is; the drain of the server waits for it."""
    context.lifecycle.enter()
    begun = StoredResponse(work.owner, work.view.response(None), work.items, is_running=True)
    try:
        await context.responses.put(begun)
        ended = await work.run.whole()
    except asyncio.CancelledError:
        ended = work.view.response(work.run.usage, "cancelled")
    except Exception as error:  # noqa: BLE001 -- kept for the client, and logged
        log_fault(error)
        ended = work.view.failed(to_api_error(error))
    try:
        await _keep(context, work, ended)
    finally:
        context.lifecycle.leave()


async def _keep(context: Context, work: _Work, response: Event) -> None:
    if work.stores:
        await context.responses.put(StoredResponse(work.owner, response, work.items))
