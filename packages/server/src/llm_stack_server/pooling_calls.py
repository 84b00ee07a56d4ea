"""One HTTP request's work at a model that gives vectors or scores. Knows neither bodies nor answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fastapi import Request
from llm_engine.errors import ContextLengthExceeded, InvalidRequest

from llm_stack_server.context import Context, context_of
from llm_stack_server.disconnect import until_disconnect
from llm_stack_server.engine_port import Engine
from llm_stack_server.errors import ApiError, ClientDisconnected, InvalidField
from llm_stack_server.generation import Usage
from llm_stack_server.ignored_fields import take_note
from llm_stack_server.metering import RequestMeter, meter_of
from llm_stack_server.pooling_port import PoolingEngine, routes_of
from llm_stack_server.request_body import read_body
from llm_stack_server.schemas.fields import RequestBody
from llm_stack_server.schemas.pooling import TRUNCATE, unknown_pooling_fields
from llm_stack_server.usage_limits import Permit, permit_of

Body = TypeVar("Body", bound=RequestBody)
_ENGINE_FIELD = re.compile(r"(\w+)(\[\d+\])?")
_UNSUPPORTED_TASK = "unsupported_task"


class Counted(Protocol):
    """Any output of the engine."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that it took."""
        ...


Output = TypeVar("Output", bound=Counted)


@dataclass(frozen=True, slots=True)
class Call(Generic[Body]):
    """A checked request.

    Attributes:
        request: The HTTP request, its body read.
        context: The application's.
        engine: What answers it.
        body: Its fields.
        model: The model's name for the answer.
        headers: Of the answer.
        route: Its path.
    """

    request: Request
    context: Context
    engine: PoolingEngine
    body: Body
    model: str
    headers: Mapping[str, str]
    route: str


async def check_generates(request: Request) -> None:
    """Refuse a route that generates text where the model does not.

    Raises:
        ApiError: 400, naming the routes that the model answers; 503 where there is no engine.
    """
    check_engine_generates(context_of(request).lifecycle.require_engine())


def check_engine_generates(engine: Engine) -> None:
    """Refuse text of a model that generates none.

    Raises:
        InvalidField: it gives vectors or scores; names the routes that it answers.
    """
    if isinstance(engine, PoolingEngine):
        offered = ", ".join(routes_of(engine.info))
        raise InvalidField(
            "model",
            f"model: it gives vectors or scores of texts and generates none; it answers {offered}",
            code=_UNSUPPORTED_TASK,
        )


def pooling_engine(engine: Engine, route: str) -> PoolingEngine:
    """The engine of a model that answers ``route``.

    Raises:
        InvalidField: the model does not; names what it answers.
    """
    if not isinstance(engine, PoolingEngine):
        raise InvalidField(
            "model",
            f"model: it generates text and gives no vectors or scores: {route} needs an embedder, a "
            "cross-encoder or a classifier; it answers /v1/chat/completions and /v1/completions",
            code=_UNSUPPORTED_TASK,
        )
    offered = routes_of(engine.info)
    if route not in offered:
        raise InvalidField(
            "model", f"model: it does not answer {route}, but {', '.join(offered)}", code=_UNSUPPORTED_TASK
        )
    return engine


async def read_call(request: Request, schema: type[Body], route: str) -> Call[Body]:
    """Read the body for a model that answers ``route``.

    Raises:
        ApiError: 400 where the model does not answer the route or a field is wrong; see `read_body`.
    """
    context = context_of(request)
    any_engine = context.lifecycle.require_engine()
    body = await read_body(request, schema)
    model = context.check_model(getattr(body, "model", None))
    engine = pooling_engine(any_engine, route)
    headers = take_note(context, route, body, unknown_pooling_fields(body.model_extra or {}))
    return Call(request, context, engine, body, model, headers, route)


async def outputs_of(
    call: Call[Any], work: Coroutine[Any, Any, list[Output]], names: Mapping[str, str | tuple[str, bool]]
) -> list[Output]:
    """What the engine makes of ``work``, which ends as soon as the client has gone.

    Args:
        call: The request.
        work: A call of the engine.
        names: The engine's names of arguments to the client's fields; ``(field, False)`` for a field that
            is one text where the engine counts several.

    Raises:
        ClientDisconnected: the client left first.
        InvalidField: the engine refused a text or an argument.
        llm_engine.errors.EngineError: the engine is busy, dead, or failed.
    """
    meter = meter_of(call.request, call.route, call.model)
    outcome = "error"
    usage = Usage()
    try:
        outputs = await until_disconnect(call.request.receive, admitted(permit_of(call.request), work, meter))
        usage.prompt_tokens = sum(output.num_prompt_tokens for output in outputs)
        outcome = "stop"
        return outputs
    except InvalidRequest as error:
        outcome = ""  # nothing ran
        raise as_client_names_it(error, names) from None
    except (ClientDisconnected, asyncio.CancelledError):
        outcome = "abort"
        raise
    finally:
        if outcome:
            meter.finished(outcome, usage)


def truncation(call: Call[Any]) -> int | None:
    """``truncate_prompt_tokens`` for the engine: -1 stands for the longest text."""
    wanted: int | None = call.body.truncate_prompt_tokens
    return call.engine.max_model_len if wanted == -1 else wanted


async def admitted(
    permit: Permit, work: Coroutine[Any, Any, list[Output]], meter: RequestMeter
) -> list[Output]:
    """Do ``work`` when the key has a place; its tokens, known only then, are taken from the rate after it."""
    try:
        await permit.enter(1, 0)
    except BaseException:
        work.close()
        raise
    meter.admitted()
    try:
        outputs = await work
        permit.spend(sum(output.num_prompt_tokens for output in outputs), "prompt")
        return outputs
    finally:
        permit.leave()


def as_client_names_it(error: InvalidRequest, names: Mapping[str, str | tuple[str, bool]]) -> ApiError:
    """The engine's refusal under the client's name of the field; ``names`` as in `outputs_of`."""
    found = _ENGINE_FIELD.fullmatch(error.field)
    assert found is not None
    base, index = found[1], found[2] or ""
    name = {"truncate": TRUNCATE, **names}.get(base, base)
    if isinstance(name, tuple):
        name, index = name[0], index if name[1] else ""
    field = name + index
    message = error.message.replace("truncate=", TRUNCATE)
    code = "context_length_exceeded" if isinstance(error, ContextLengthExceeded) else "invalid_value"
    return InvalidField(field, f"{field}: {message}", code=code)
