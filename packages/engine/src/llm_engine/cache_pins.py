"""Owns the wish to keep a prompt's beginning in the prefix cache; knows nothing of who keeps it."""

import math
from collections.abc import Sequence

import msgspec

from llm_engine.errors import InvalidRequest

MAX_PINS = 4
MAX_TTL_S = 24 * 3600.0


class CachePin(msgspec.Struct, frozen=True, array_like=True):
    """Keep the KV of a prompt's first `num_tokens` tokens for `ttl_s` seconds once it was computed.

    A later request that begins alike finds it, and its own pin starts the time anew.
    """

    num_tokens: int
    ttl_s: float


def check_pins(pins: Sequence[CachePin], num_prompt_tokens: int) -> None:
    """Check the pins of a request.

    Raises:
        InvalidRequest: Too many, beyond the prompt, or a time out of range; names `cache_pins`.
    """
    if len(pins) > MAX_PINS:
        raise InvalidRequest("cache_pins", f"at most {MAX_PINS} pins, got {len(pins)}")
    for pin in pins:
        if not isinstance(pin, CachePin):
            raise InvalidRequest("cache_pins", f"must hold CachePins, got {type(pin).__name__}")
        if not 0 <= pin.num_tokens <= num_prompt_tokens:
            raise InvalidRequest(
                "cache_pins", f"must lie within the prompt's {num_prompt_tokens} tokens, got {pin.num_tokens}"
            )
        if not (math.isfinite(pin.ttl_s) and 0 < pin.ttl_s <= MAX_TTL_S):
            raise InvalidRequest("cache_pins", f"must last up to {MAX_TTL_S:g} seconds, got {pin.ttl_s}")
