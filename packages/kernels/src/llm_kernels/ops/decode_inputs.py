"""The ops at both ends of a decode step: from slots to the model's inputs, from drawn tokens to the slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from llm_kernels.backends import torch_backend, triton_backends
from llm_kernels.decode_rows import DecodeRows, PreparedRows
from llm_kernels.errors import InvalidArgument
from llm_kernels.reference import decode_inputs as reference
from llm_kernels.registry import Op

_Prepare: TypeAlias = Callable[[DecodeRows, Tensor, Tensor, int, bool], PreparedRows]
_Store: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# They work on integers: the float dtype that the registry asks for plays no part.
PREPARE_DECODE: Op[_Prepare] = Op(
    "prepare_decode",
    [
        torch_backend(reference.prepare_decode, is_batch_invariant=True),
        *triton_backends("decode_inputs", "prepare_decode", is_batch_invariant=True),
    ],
)
STORE_TOKENS: Op[_Store] = Op(
    "store_tokens",
    [
        torch_backend(reference.store_tokens, is_batch_invariant=True),
        *triton_backends("decode_inputs", "store_tokens", is_batch_invariant=True),
    ],
)


def prepare_decode(
    rows: DecodeRows, token_ids_SM: Tensor, tables_FSW: Tensor, block_size: int, *, has_places: bool = True
) -> PreparedRows:
    """Adds new blocks to the tables of slots, and reads what the model needs of a decode step's rows.

    Args:
        rows: B rows of one token each.
        token_ids_SM: int32[S, M], the tokens of each slot.
        tables_FSW: int32[F, S, W], the block tables of each slot, all of one block size; written.
        block_size: Tokens of a block.
        has_places: Whether each token has a place in a block.

    Returns:
        Tensors of their own.

    Raises:
        InvalidArgument: A shape or a dtype does not fit; the argument is named.
    """
    _check_rows(rows, token_ids_SM, tables_FSW)
    prepare = PREPARE_DECODE.pick(rows.slots.device, torch.float32, block_size)
    return prepare(rows, token_ids_SM, tables_FSW, block_size, has_places)


def store_tokens(tokens_B: Tensor, faults_B: Tensor, places_B: Tensor, token_ids_SM: Tensor) -> Tensor:
    """Writes drawn tokens to where the next step reads them, and makes what goes to the host.

    Args:
        tokens_B: int64[B].
        faults_B: bool[B], rows whose token means nothing; it is stored all the same.
        places_B: int64[B], flat indices into `token_ids_SM`, distinct and at least 1; -1: not stored.
        token_ids_SM: int32[S, M], contiguous; written.

    Returns:
        int32[B], the tokens, -1 at faults.

    Raises:
        InvalidArgument: A shape or a dtype does not fit; the argument is named.
    """
    _check_column("tokens_B", tokens_B, torch.int64, len(tokens_B))
    _check_column("faults_B", faults_B, torch.bool, len(tokens_B))
    _check_column("places_B", places_B, torch.int64, len(tokens_B))
    if token_ids_SM.dtype != torch.int32 or not token_ids_SM.is_contiguous():
        raise InvalidArgument("token_ids_SM", "must be int32 and contiguous")
    store = STORE_TOKENS.pick(tokens_B.device, torch.float32, 1)
    return store(tokens_B, faults_B, places_B, token_ids_SM)


def _check_rows(rows: DecodeRows, token_ids_SM: Tensor, tables_FSW: Tensor) -> None:
    num_rows = len(rows.slots)
    _check_column("slots", rows.slots, torch.int64, num_rows)
    _check_column("context_lens", rows.context_lens, torch.int32, num_rows)
    for name, table, dims in (("token_ids_SM", token_ids_SM, 2), ("tables_FSW", tables_FSW, 3)):
        if table.dim() != dims or table.dtype != torch.int32 or not table.is_contiguous():
            raise InvalidArgument(name, f"must be contiguous int32 of {dims} dimensions")
    for name in ("new_columns", "new_blocks"):
        value = getattr(rows, name)
        if tuple(value.shape) != (tables_FSW.shape[0], num_rows) or value.dtype != torch.int32:
            raise InvalidArgument(
                name,
                f"must be int32[{tables_FSW.shape[0]}, {num_rows}], got {value.dtype}{list(value.shape)}",
            )


def _check_column(name: str, value: Tensor, dtype: torch.dtype, length: int) -> None:
    if value.dtype != dtype or tuple(value.shape) != (length,):
        raise InvalidArgument(name, f"must be {dtype}[{length}], got {value.dtype}{list(value.shape)}")
