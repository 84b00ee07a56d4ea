"""Fields of a body that no one here knows: told and counted, or refused if strict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from llm_stack_server.context import Context
from llm_stack_server.errors import ApiError
from llm_stack_server.schemas.fields import RequestBody

IGNORED_HEADER = "x-ignored-fields"
_MAX_NAMED_FIELDS = 32
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.\-\[\]]{1,160}")
_INDEX = re.compile(r"\[\d+\]")
_CLOSE = 0.75  # below it a suggestion is a guess


def take_note(context: Context, route: str, body: RequestBody, unknown: Sequence[str]) -> dict[str, str]:
    """The headers that name what the answer goes without.

    Args:
        context: The application's.
        route: Under which they are counted.
        body: The whole body.
        unknown: Its own unknown fields, as the route's API sees them.

    Raises:
        ApiError: 400 where the server is strict and there are such fields.
    """
    places = [*unknown, *_nested(body, "")]
    if not places:
        return {}
    if context.settings.strict:
        raise unknown_field_error(places, type(body).model_fields)
    names = safe_names(list(dict.fromkeys(_INDEX.sub("", place) for place in places)))
    context.metrics.ignored_fields.labels(route).inc(len(names))
    return {IGNORED_HEADER: ", ".join(names[:_MAX_NAMED_FIELDS])}


def safe_names(names: Sequence[str]) -> list[str]:
    """The names that may stand in a header; "?" for others."""
    return [name if _SAFE_NAME.fullmatch(name) else "?" for name in names]


def unknown_field_error(places: Sequence[str], known: Mapping[str, object]) -> ApiError:
    """The refusal of unknown fields; where the first one is nearly a known one, with that one."""
    shown = safe_names(places[:_MAX_NAMED_FIELDS])
    near = get_close_matches(shown[0], known, n=1, cutoff=_CLOSE)
    hint = f"; did you mean {near[0]}?" if near else ""
    more = f" and {len(places) - len(shown)} more" if len(places) > len(shown) else ""
    kind = "field" if len(places) == 1 else "fields"
    message = f"unknown {kind} {', '.join(shown)}{more}, which this server refuses (--strict){hint}"
    return ApiError(400, message, param=shown[0], code="unknown_parameter")


def _places(body: RequestBody, path: str) -> Iterator[str]:
    for name in body.unknown():
        yield f"{path}.{name}"
    yield from _nested(body, f"{path}.")


def _nested(body: RequestBody, path: str) -> Iterator[str]:
    """Places such as ``messages[0].mood``."""
    for name, value in vars(body).items():
        if isinstance(value, RequestBody):
            yield from _places(value, f"{path}{name}")
        # Lists hold one kind of thing; one of a million token ids is not walked.
        elif isinstance(value, list) and value and isinstance(value[0], RequestBody):
            for index, item in enumerate(value):
                yield from _places(item, f"{path}{name}[{index}]")
