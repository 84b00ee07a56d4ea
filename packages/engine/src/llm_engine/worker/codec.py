"""Plans and results as bytes: MessagePack, arrays raw, no pickle; knows nothing of sockets.

The first byte of a message says what it holds; anything but a plan, a result and a model's description is
plain data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from llm_distributed import CodecError, MsgpackCodec
from llm_scheduler import NewRow, Ragged, StepPlan, StepResult
from numpy.typing import NDArray

from llm_engine.outputs import TokenLogprobs
from llm_engine.worker.config import ModelInfo
from llm_engine.worker.row_params import RowParams

_PLAIN, _PLAN, _RESULT, _MODEL_INFO = b"\0", b"\1", b"\2", b"\3"


class _Ragged(msgspec.Struct, array_like=True, frozen=True):
    values: bytes
    offsets: bytes


class _Row(msgspec.Struct, array_like=True, frozen=True):
    slot: int
    request_id: str
    token_ids: bytes
    num_prompt_tokens: int
    payload: RowParams


class _Plan(msgspec.Struct, array_like=True, frozen=True):
    step_id: int
    slots: bytes
    num_tokens: bytes
    num_computed: bytes
    samples: bytes
    new_blocks: list[_Ragged]
    admitted: list[_Row]
    released: bytes
    transfers: bytes


class _Result(msgspec.Struct, array_like=True, frozen=True):
    step_id: int
    tokens: _Ragged
    logprobs: dict[int, tuple[TokenLogprobs, ...]]
    prompt_logprobs: dict[int, tuple[TokenLogprobs | None, ...]]
    faults: dict[int, str]


class EngineCodec:
    """The codec of the engine's workers: `StepPlan`, `StepResult`, `ModelInfo`, and plain data."""

    def __init__(self) -> None:
        self._plain = MsgpackCodec()
        self._encoder = msgspec.msgpack.Encoder()
        self._plan_decoder = msgspec.msgpack.Decoder(_Plan)
        self._result_decoder = msgspec.msgpack.Decoder(_Result)
        self._info_decoder = msgspec.msgpack.Decoder(ModelInfo)

    def encode(self, value: Any) -> list[bytes]:  # noqa: ANN401  (plans, results or plain data)
        """Encodes a value into a kind and a body; raises `CodecError` for what it does not know."""
        try:
            if isinstance(value, StepPlan):
                return [_PLAN, self._encoder.encode(_pack_plan(value))]
            if isinstance(value, StepResult):
                return [_RESULT, self._encoder.encode(_pack_result(value))]
            if isinstance(value, ModelInfo):
                return [_MODEL_INFO, self._encoder.encode(value)]
        except (TypeError, msgspec.MsgspecError, OverflowError) as error:
            raise CodecError(f"cannot encode {type(value).__name__}: {error}") from error
        return [_PLAIN, *self._plain.encode(_to_plain(value))]

    def decode(self, frames: Sequence[memoryview]) -> Any:  # noqa: ANN401
        """Decodes what `encode` made; raises `CodecError` for anything else. Arrays are read-only."""
        if len(frames) != 2:
            raise CodecError(f"expected a kind and a body, got {len(frames)} frames")
        kind, body = bytes(frames[0]), frames[1]
        try:
            if kind == _PLAN:
                return _unpack_plan(self._plan_decoder.decode(body))
            if kind == _RESULT:
                return _unpack_result(self._result_decoder.decode(body))
            if kind == _MODEL_INFO:
                return self._info_decoder.decode(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CodecError(f"cannot decode a message of kind {kind!r}: {error}") from error
        if kind != _PLAIN:
            raise CodecError(f"unknown kind of message {kind!r}")
        return self._plain.decode([body])


def _to_plain(value: Any) -> Any:  # noqa: ANN401  (arguments of any call)
    """Structs among a call's arguments (a `WorkerConfig`) become dicts; the factory turns them back."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    return value


def _bytes(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array, np.int32).tobytes()


def _ints(data: bytes) -> NDArray[np.int32]:
    return np.frombuffer(data, np.int32)


def _pack_ragged(ragged: Ragged) -> _Ragged:
    return _Ragged(_bytes(ragged.values), _bytes(ragged.offsets))


def _unpack_ragged(packed: _Ragged) -> Ragged:
    return Ragged(_ints(packed.values), _ints(packed.offsets))


def _pack_row(row: NewRow) -> _Row:
    if not isinstance(row.payload, RowParams):
        raise TypeError(f"payload of {row.request_id} must be RowParams, got {type(row.payload).__name__}")
    return _Row(row.slot, row.request_id, _bytes(row.token_ids), row.num_prompt_tokens, row.payload)


def _unpack_row(row: _Row) -> NewRow:
    return NewRow(row.slot, row.request_id, _ints(row.token_ids), row.num_prompt_tokens, row.payload)


def _pack_plan(plan: StepPlan) -> _Plan:
    return _Plan(
        step_id=plan.step_id,
        slots=_bytes(plan.slots),
        num_tokens=_bytes(plan.num_tokens),
        num_computed=_bytes(plan.num_computed),
        samples=np.ascontiguousarray(plan.samples, np.bool_).tobytes(),
        new_blocks=[_pack_ragged(blocks) for blocks in plan.new_blocks],
        admitted=[_pack_row(row) for row in plan.admitted],
        released=_bytes(plan.released),
        transfers=_bytes(plan.transfers),
    )


def _unpack_plan(packed: _Plan) -> StepPlan:
    return StepPlan(
        step_id=packed.step_id,
        slots=_ints(packed.slots),
        num_tokens=_ints(packed.num_tokens),
        num_computed=_ints(packed.num_computed),
        samples=np.frombuffer(packed.samples, np.bool_),
        new_blocks=tuple(_unpack_ragged(blocks) for blocks in packed.new_blocks),
        admitted=[_unpack_row(row) for row in packed.admitted],
        released=_ints(packed.released),
        transfers=_ints(packed.transfers).reshape(-1, 3),
    )


def _pack_result(result: StepResult) -> _Result:
    return _Result(
        step_id=result.step_id,
        tokens=_pack_ragged(result.tokens),
        logprobs=dict(result.logprobs),  # type: ignore[arg-type]  # opaque to the scheduler, ours here
        prompt_logprobs=dict(result.prompt_logprobs),  # type: ignore[arg-type]
        faults=dict(result.faults),
    )


def _unpack_result(packed: _Result) -> StepResult:
    return StepResult(
        step_id=packed.step_id,
        tokens=_unpack_ragged(packed.tokens),
        logprobs=packed.logprobs,
        prompt_logprobs=packed.prompt_logprobs,
        faults=packed.faults,
    )
