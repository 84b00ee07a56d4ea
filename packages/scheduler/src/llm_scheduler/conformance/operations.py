"""The operations of a sequence as data, so that it can be replayed and cut; knows nothing of their effects.

Every operation can be applied in any state: one that does not apply (landing with nothing in flight) does
nothing. So a sequence stays valid when operations are taken out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from llm_scheduler.conformance.worlds import World
from llm_scheduler.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Add a request; one that is live already must be refused.

    Attributes are those of ``Request``; ``prompt`` is its ``token_ids``.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int = 4
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    arrival_s: float = 0.0
    tenant: str = ""
    salt: bytes | None = None
    lora: str | None = None
    match_prefix: bool = True

    def request(self) -> Request:
        """Make the request; its payload is an object of its own."""
        return Request(
            request_id=self.request_id,
            token_ids=np.array(self.prompt, np.int32),
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop_token_ids=self.stop_token_ids,
            priority=self.priority,
            arrival_s=self.arrival_s,
            tenant=self.tenant,
            salt=self.salt,
            lora=self.lora,
            match_prefix=self.match_prefix,
            payload=object(),
        )


@dataclass(frozen=True, slots=True)
class AddMalformed:
    """Add a request that must be refused; ``kind`` is a key of ``malformed.MALFORMED``."""

    kind: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort requests, also ended and unknown ones."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Plan a step and execute it; the result is kept back.

    Attributes:
        fails: The step writes garbage and raises.
        faulty: Share of the rows that go wrong.
        draw: Which of them, as a seed.
    """

    fails: bool = False
    faulty: float = 0.0
    draw: int = 0


@dataclass(frozen=True, slots=True)
class Land:
    """Hand the oldest result to the scheduler, or with ``failed_first`` that of any step that raised."""

    failed_first: bool = False


@dataclass(frozen=True, slots=True)
class LandWrongly:
    """Hand over what must be refused; ``kind`` is a key of ``misuse.MISUSES``."""

    kind: str


Operation: TypeAlias = Add | AddMalformed | Abort | Launch | Land | LandWrongly


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A world and what is done in it. At its end, everything that is live runs to its end.

    Attributes:
        name: Of the scenario, or of the random seed.
        world: Where it runs.
        operations: What is done, in order.
    """

    name: str
    world: World
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return self.name
