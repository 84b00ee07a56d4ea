"""Whether a request may enter the queue; knows nothing of steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from llm_kvcache import InvalidArgument, KVCache, block_hashes

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.errors import Busy, InvalidRequest, NeverFits
from llm_scheduler.plan import Int32
from llm_scheduler.request import EncoderItem, Request
from llm_scheduler.waiting import WaitingQueue

_MAX_TOKEN_ID = 2**31 - 1


def checked_request(request: Request, max_model_len: int) -> Request:
    """Return the request with its prompt as a private int32 array.

    Raises:
        InvalidRequest: A field is malformed; it names the first.
    """
    if not isinstance(request.request_id, str) or not request.request_id:
        raise InvalidRequest("request_id", "expected a string that is not empty")
    token_ids = _checked_prompt(request.token_ids, max_model_len)
    _require_int("max_tokens", request.max_tokens, least=1)
    _require_int("min_tokens", request.min_tokens, least=0)
    if request.min_tokens > request.max_tokens:
        raise InvalidRequest("min_tokens", f"{request.min_tokens} is above max_tokens={request.max_tokens}")
    _require_int("priority", request.priority, least=-(2**53))
    if not _is_real(request.arrival_s):
        raise InvalidRequest("arrival_s", f"expected a finite number, got {request.arrival_s!r}")
    if request.deadline_s is not None and not _is_real(request.deadline_s):
        raise InvalidRequest("deadline_s", f"expected a finite number or None, got {request.deadline_s!r}")
    if not isinstance(request.tenant, str):
        raise InvalidRequest("tenant", f"expected a string, got {request.tenant!r}")
    if not isinstance(request.match_prefix, bool):
        raise InvalidRequest("match_prefix", f"expected true or false, got {request.match_prefix!r}")
    _check_extra_keys(request, token_ids)
    waits_for = _checked_names(request.waits_for)
    _check_encoder_items(request.encoder_items, len(token_ids))
    _check_outputs(request, max_model_len - len(token_ids))
    try:
        stops = frozenset(request.stop_token_ids)
    except TypeError:
        raise InvalidRequest("stop_token_ids", "expected a set of token ids") from None
    if any(isinstance(token, bool) or not isinstance(token, int) for token in stops):
        raise InvalidRequest("stop_token_ids", "expected integers")
    return replace(request, token_ids=token_ids, stop_token_ids=stops, waits_for=waits_for)


def _check_extra_keys(request: Request, token_ids: Int32) -> None:
    """Let the cache judge what only it will use, before the request is queued."""
    if request.salt is None and request.lora is None and not request.media:
        return
    try:
        # No block is that large, so nothing is hashed.
        block_hashes(token_ids, 2**30, salt=request.salt, lora=request.lora, media=request.media)
    except InvalidArgument as error:
        raise InvalidRequest(error.field, error.reason) from error


def _checked_prompt(token_ids: object, max_model_len: int) -> Int32:
    prompt = np.asarray(token_ids)
    if prompt.ndim != 1 or not prompt.size:
        raise InvalidRequest("token_ids", "expected at least one token in one dimension")
    if not np.issubdtype(prompt.dtype, np.integer):
        raise InvalidRequest("token_ids", f"expected integers, got {prompt.dtype}")
    if len(prompt) >= max_model_len:
        message = f"{len(prompt)} tokens leave no room for an output within max_model_len={max_model_len}"
        raise InvalidRequest("token_ids", message)
    if int(prompt.min()) < 0 or int(prompt.max()) > _MAX_TOKEN_ID:
        raise InvalidRequest("token_ids", f"expected token ids from 0 to {_MAX_TOKEN_ID}")
    return prompt.astype(np.int32)


def _checked_names(names: object) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidRequest("waits_for", "expected a set of names")
    checked = frozenset(names)
    if not all(isinstance(name, str) for name in checked):
        raise InvalidRequest("waits_for", "expected strings")
    return checked


def _check_encoder_items(items: object, num_prompt_tokens: int) -> None:
    if not isinstance(items, tuple) or not all(isinstance(item, EncoderItem) for item in items):
        raise InvalidRequest("encoder_items", "expected a tuple of EncoderItem")
    end = 0
    for item in items:
        for name in ("position", "num_tokens", "encoder_tokens"):
            value = getattr(item, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < (name != "position"):
                raise InvalidRequest("encoder_items", f"{name}={value!r} is not a valid number")
        if item.position < end:
            raise InvalidRequest("encoder_items", "expected items by position, without overlaps")
        end = item.position + item.num_tokens
    if end > num_prompt_tokens:
        message = f"the last item ends at {end}, the prompt has {num_prompt_tokens} tokens"
        raise InvalidRequest("encoder_items", message)


def _check_outputs(request: Request, room: int) -> None:
    """Refuse outputs behind which nothing can follow."""
    outputs = request.output_token_ids
    if not isinstance(outputs, tuple) or not all(type(token) is int for token in outputs):
        raise InvalidRequest("output_token_ids", "expected a tuple of integers")
    if any(not 0 <= token <= _MAX_TOKEN_ID for token in outputs):
        raise InvalidRequest("output_token_ids", f"expected token ids from 0 to {_MAX_TOKEN_ID}")
    most = min(request.max_tokens, room)
    if len(outputs) >= most:
        raise InvalidRequest("output_token_ids", f"{len(outputs)} of at most {most} tokens are there already")


def _require_int(field: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**53:
        raise InvalidRequest(field, f"expected an integer, at least {least}, got {value!r}")


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def require_fits(num_tokens: int, cache: KVCache) -> None:
    """Refuse a request that could not run even alone.

    Args:
        num_tokens: Its length at the longest.
        cache: The cache it would run in.

    Raises:
        NeverFits: It needs more blocks than the cache has.
    """
    needed = sum(-(-num_tokens // group.block_size) for group in cache.groups)
    num_blocks = cache.stats().num_blocks
    if needed > num_blocks:
        raise NeverFits(needed, num_blocks)


class FinishRate:
    """How many requests ended a second lately, to tell clients when to come back."""

    _WINDOW = 64
    _DEFAULT_S = 1.0
    _LEAST_S = 0.1
    _MOST_S = 60.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends_s: deque[float] = deque(maxlen=self._WINDOW)

    def record(self) -> None:
        """Note that a request ended now."""
        self._ends_s.append(self._clock())

    def seconds_until(self, num_ends: int) -> float:
        """Estimate the seconds until that many more requests have ended; 1 s where nothing ended yet."""
        if not self._ends_s:
            return self._DEFAULT_S
        # Measured up to now, not up to the last end: a stalled engine must not look fast.
        elapsed_s = max(self._clock() - self._ends_s[0], 1e-3)
        wait_s = num_ends * elapsed_s / len(self._ends_s)
        return min(max(wait_s, self._LEAST_S), self._MOST_S)


class AdmissionGate:
    """Bounds the queue in requests and tokens."""

    def __init__(self, config: SchedulerConfig, rate: FinishRate) -> None:
        self._config = config
        self._rate = rate

    def require_room(self, num_tokens: int, waiting: WaitingQueue) -> None:
        """Refuse a prompt of that length when the queue is full.

        Raises:
            Busy: With the seconds after which room is likely.
        """
        if not len(waiting):
            return
        if len(waiting) >= self._config.max_waiting_requests:
            surplus = len(waiting) + 1 - self._config.max_waiting_requests
            raise Busy(self._rate.seconds_until(surplus), f"{len(waiting)} requests are waiting")
        surplus_tokens = waiting.num_prompt_tokens + num_tokens - self._config.max_waiting_tokens
        if surplus_tokens > 0:
            mean_tokens = waiting.num_prompt_tokens / len(waiting)
            surplus = min(math.ceil(surplus_tokens / mean_tokens), len(waiting))
            raise Busy(self._rate.seconds_until(surplus), f"{waiting.num_prompt_tokens} tokens are waiting")
