"""Requests that every scheduler must refuse, and the error for each; knows nothing of schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from llm_scheduler.conformance.worlds import World
from llm_scheduler.errors import InvalidRequest, NeverFits, SchedulerError
from llm_scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Malformed:
    """A request to refuse.

    Attributes:
        change: What is wrong with it, as a change of fields.
        error: The error that must be raised.
        field: The field that an ``InvalidRequest`` must name.
    """

    change: Callable[[World], Mapping[str, object]]
    error: type[SchedulerError] = InvalidRequest
    field: str = ""

    def request(self, world: World) -> Request:
        """Make the request."""
        sound = Request(request_id="malformed", token_ids=np.array([1], np.int32), max_tokens=1)
        return replace(sound, **self.change(world))  # type: ignore[arg-type]


def _field(name: str, value: object) -> Malformed:
    return Malformed(lambda _: {name: value}, field=name)


def _longest(world: World) -> dict[str, object]:
    length = world.config.max_model_len
    return {"token_ids": np.ones(length - 1, np.int32), "max_tokens": length}


MALFORMED: Mapping[str, Malformed] = MappingProxyType(
    {
        "no id": _field("request_id", ""),
        "an empty prompt": _field("token_ids", np.empty(0, np.int32)),
        "a prompt of two dimensions": _field("token_ids", np.ones((2, 2), np.int32)),
        "a prompt of floats": _field("token_ids", np.ones(2)),
        "a negative token": _field("token_ids", np.array([1, -1], np.int32)),
        "a prompt of max_model_len": Malformed(
            lambda world: {"token_ids": np.ones(world.config.max_model_len, np.int32)}, field="token_ids"
        ),
        "no outputs": _field("max_tokens", 0),
        "a fraction of an output": _field("max_tokens", 1.5),
        "negative min_tokens": _field("min_tokens", -1),
        "min_tokens above max_tokens": _field("min_tokens", 2),
        "a priority in words": _field("priority", "high"),
        "an arrival that is no number": _field("arrival_s", math.nan),
        "stop tokens in words": _field("stop_token_ids", frozenset({"stop"})),
        "more than the cache holds": Malformed(_longest, NeverFits),
    }
)


def applies(kind: str, world: World) -> bool:
    """Tell whether a request is malformed in this world: a large cache holds any request."""
    if kind != "more than the cache holds":
        return True
    return world.num_blocks_at_most(MALFORMED[kind].request(world)) > world.num_blocks
