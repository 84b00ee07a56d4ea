"""Anthropic's ``cache_control``: which beginnings of a prompt are to stay in the cache, and for how long.

A mark stands behind a block of the body; in the prompt that is the place up to which the prompt begins like
one whose conversation ends there. Knows nothing of the engine's blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from llm_engine.cache_pins import CachePin
from llm_tokenizer import TemplateError

from llm_stack_server.errors import InvalidField
from llm_stack_server.schemas.messages import Block, CacheControl, Message, MessagesPrompt

MAX_MARKS = 4
_SECONDS = {"5m": 300.0, "1h": 3600.0}
# What the first turn is replaced by, to see what of the prompt stands before it.
_OTHER_TURN = Message(role="user", content=[Block(type="text", text="\x01")])

RenderBody = Callable[[MessagesPrompt], Awaitable[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A mark behind a block of a message, or, without a place, behind tools and system prompt."""

    field: str
    ttl: str
    message: int = -1
    block: int = -1


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The beginnings to keep, with the time of each: the longer time first."""

    pins: tuple[CachePin, ...] = ()

    def created(self, num_cached: int, pinned: Sequence[int]) -> dict[str, int]:
        """Tokens that this request put into the cache to stay, by their time.

        Args:
            num_cached: The tokens that were found there.
            pinned: For each pin, the tokens that are kept.
        """
        created = dict.fromkeys(_SECONDS, 0)
        end = num_cached
        for pin, num_tokens in zip(self.pins, pinned, strict=False):
            ttl = next(ttl for ttl, seconds in _SECONDS.items() if seconds == pin.ttl_s)
            created[ttl] += max(0, num_tokens - end)
            end = max(end, num_tokens)
        return created


async def cache_plan(body: MessagesPrompt, prompt: Sequence[int], render: RenderBody) -> CachePlan:
    """What the body's marks ask for.

    Args:
        body: The request.
        prompt: Its tokens.
        render: Makes the tokens of a body, up to its last block and without the head of an answer.

    Raises:
        InvalidField: too many marks, a short time before a long one, or a mark where none may stand.
    """
    marks = _marks(body)
    pins = []
    for ttl in ("1h", "5m"):
        last = next((mark for mark in reversed(marks) if mark.ttl == ttl), None)
        if last is not None:
            num_tokens = await _place(body, prompt, last, render)
            pins.append(CachePin(num_tokens, _SECONDS[ttl]))
    return CachePlan(tuple(pins))


def _marks(body: MessagesPrompt) -> list[_Mark]:
    """All marks in the order in which a prompt has them: tools, system, messages, the whole."""
    marks = []
    for index, tool in enumerate(body.tools or []):
        if tool.cache_control is not None:
            marks.append(_Mark(f"tools[{index}].cache_control", tool.cache_control.ttl))
    for index, block in enumerate(body.system or []):
        if (control := _control(block, f"system[{index}]")) is not None:
            marks.append(_Mark(f"system[{index}].cache_control", control.ttl))
    for place, message in enumerate(body.messages):
        for index, block in enumerate(message.content):
            field = f"messages[{place}].content[{index}]"
            controls = [_control(block, field), *_controls_within(block, field)]
            marks += [
                _Mark(f"{field}.cache_control", control.ttl, place, index)
                for control in controls
                if control is not None
            ]
    if body.cache_control is not None:
        last = len(body.messages) - 1
        marks.append(_Mark("cache_control", body.cache_control.ttl, last, len(body.messages[-1].content) - 1))
    if len(marks) > MAX_MARKS:
        field = marks[MAX_MARKS].field
        raise InvalidField(
            field, f"{field}: at most {MAX_MARKS} blocks may have cache_control, got {len(marks)}"
        )
    for before, mark in itertools.pairwise(marks):
        if before.ttl == "5m" and mark.ttl == "1h":
            raise InvalidField(
                f"{mark.field}.ttl", f"{mark.field}.ttl: '1h' must not come after a shorter time"
            )
    return marks


def _controls_within(block: Block, field: str) -> list[CacheControl | None]:
    """Of the blocks in a tool's result: the mark counts behind the whole result."""
    inner = block.content if isinstance(block.content, list) else []
    return [_control(part, f"{field}.content[{index}]") for index, part in enumerate(inner)]


def _control(block: Block, field: str) -> CacheControl | None:
    if block.cache_control is None:
        return None
    if block.type in ("thinking", "redacted_thinking"):
        raise InvalidField(f"{field}.cache_control", f"{field}.cache_control: not on blocks of thinking")
    if block.type == "text" and not block.text:
        raise InvalidField(f"{field}.cache_control", f"{field}.cache_control: not on an empty text")
    return block.cache_control


async def _place(body: MessagesPrompt, prompt: Sequence[int], mark: _Mark, render: RenderBody) -> int:
    """How many of the prompt's tokens stand before the mark. 0 where the template takes no such beginning."""
    if mark.message < 0:
        begun = [_OTHER_TURN]
    else:
        last = body.messages[mark.message]
        cut = last.model_copy(update={"content": last.content[: mark.block + 1]})
        begun = [*body.messages[: mark.message], cut]
    try:
        beginning = await render(body.model_copy(update={"messages": begun}))
    except TemplateError:
        return 0
    same = 0
    for one, other in zip(prompt, beginning, strict=False):
        if one != other:
            break
        same += 1
    return same
