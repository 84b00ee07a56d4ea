"""Turns a step plan into the model's inputs; knows nothing of sampling or of the model.

The host computes what follows from the plan alone (lengths, positions), packs it into one copy, and the
device reads the rest from the slot tables: token ids, block ids, and from them the places in the KV cache.
Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from llm_kernels.ops import AttentionMetadata
from llm_scheduler import StepPlan
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.decode_layout import HostDecode
from llm_engine.worker.errors import PlanError
from llm_engine.worker.group_metadata import GroupMetadata, StepRows, unpack_prefixes
from llm_engine.worker.mixed_layout import HostMixed, MixedKey
from llm_engine.worker.shared_prefix import PrefixPlan, SharedPrefixes
from llm_engine.worker.slot_params import SlotParams
from llm_engine.worker.slot_tables import SlotTables, TableUpdate


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A plan's lengths on the host.

    Attributes:
        cu_query_lens: int32[R + 1], prefix sums of the rows' tokens.
        context_lens: int32[R], tokens in the cache after the step.
        sample_rows: int64[E], rows that yield a token.
        num_tokens: Tokens in the step.
        num_decodes: Leading rows with one token.
        max_query_len: Longest row.
        max_context_len: Longest context.
        prefixes: What the leading rows share; None: nothing that matters.
    """

    cu_query_lens: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    sample_rows: NDArray[np.int64]
    num_tokens: int
    num_decodes: int
    max_query_len: int
    max_context_len: int
    prefixes: PrefixPlan | None = None


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What the model runs on: int64[T] token ids, and the rows' description for each of its caches."""

    input_ids: Tensor
    metadata: list[AttentionMetadata]


def measure(plan: StepPlan, tables: SlotTables, shared: SharedPrefixes) -> HostBatch:
    """Computes the lengths of a plan's rows and checks them against the slots.

    Args:
        plan: The plan.
        tables: The slots' tables.
        shared: Finds what the leading rows share.

    Raises:
        PlanError: No rows, an empty slot, a row longer than its tables or than its blocks.
    """
    if plan.num_rows == 0:
        raise PlanError("a plan needs at least one row")
    in_use = tables.in_use[plan.slots]
    if np.count_nonzero(in_use) != plan.num_rows:
        raise PlanError(f"slots without a request: {plan.slots[~in_use].tolist()}")
    context_lens = (plan.num_computed + plan.num_tokens).astype(np.int32, copy=False)
    if plan.num_tokens.min() < 1 or not tables.holds(plan.slots, context_lens):
        raise PlanError("a row has no tokens, or more than its blocks hold")
    max_query_len, num_decodes = int(plan.num_tokens.max()), plan.num_rows
    if max_query_len == 1:
        cu_query_lens = np.arange(plan.num_rows + 1, dtype=np.int32)
    else:
        num_decodes = int((plan.num_tokens != 1).argmax())
        cu_query_lens = np.zeros(plan.num_rows + 1, np.int32)
        np.cumsum(plan.num_tokens, out=cu_query_lens[1:])
    return HostBatch(
        cu_query_lens=cu_query_lens,
        context_lens=context_lens,
        sample_rows=plan.samples.nonzero()[0],
        num_tokens=int(cu_query_lens[-1]),
        num_decodes=num_decodes,
        max_query_len=max_query_len,
        max_context_len=int(context_lens.max()),
        prefixes=shared.find(plan.slots[:num_decodes], context_lens[:num_decodes]),
    )


def fill_decode(
    host: HostDecode,
    plan: StepPlan,
    batch: HostBatch,
    tables: SlotTables,
    params: SlotParams,
    *,
    filters: bool,
) -> None:
    """Writes the rows of a plan, all of one token, before the padding of a decode step.

    Args:
        host: All padding.
        plan: The plan.
        batch: Its lengths.
        tables: The slots' tables.
        params: The slots' parameters.
        filters: Whether the step heeds top-k, top-p and min-p.
    """
    num_rows, slots, lengths = plan.num_rows, plan.slots, batch.context_lens
    host.slots[:num_rows] = slots
    host.context_lens[:num_rows] = lengths
    host.next_positions[:num_rows] = lengths
    host.seeds[:num_rows] = params.seeds[slots]
    host.temperature[:num_rows] = params.temperature[slots]
    if filters:
        host.top_p[:num_rows] = params.top_p[slots]
        host.min_p[:num_rows] = params.min_p[slots]
        host.top_k[:num_rows] = params.top_k[slots]
    places = host.places[:num_rows]
    np.multiply(host.slots[:num_rows], tables.max_tokens, out=places)
    places += lengths
    if len(batch.sample_rows) != num_rows:
        places[~plan.samples] = -1


def fill_mixed(
    host: HostMixed, key: MixedKey, plan: StepPlan, batch: HostBatch, tables: SlotTables, params: SlotParams
) -> NDArray[np.int64]:
    """Writes a plan's decode rows and prompts where a captured step reads them.

    Args:
        host: All padding.
        key: The step's sizes.
        plan: The plan.
        batch: Its lengths.
        tables: The slots' tables.
        params: The slots' parameters.

    Returns:
        int64[R], where each row of the plan stands in the step.
    """
    num_decodes, slots, lengths = batch.num_decodes, plan.slots, batch.context_lens
    at = np.arange(plan.num_rows)
    at[num_decodes:] += key.decodes - num_decodes
    host.slots[at], host.context_lens[at], host.next_positions[at] = slots, lengths, lengths
    host.seeds[at], host.temperature[at] = params.seeds[slots], params.temperature[slots]
    if key.filters:
        host.top_p[at], host.min_p[at], host.top_k[at] = (
            params.top_p[slots],
            params.min_p[slots],
            params.top_k[slots],
        )
    sampled = batch.sample_rows
    host.places[at[sampled]] = slots[sampled].astype(np.int64) * tables.max_tokens + lengths[sampled]
    query_lens = np.zeros(key.rows + 2, np.int64)
    query_lens[1 : key.decodes + 1] = 1
    query_lens[at + 1] = plan.num_tokens
    query_lens[-1] = key.tokens - query_lens.sum()
    np.cumsum(query_lens, out=host.cu_query_lens)
    host.last_tokens[at] = host.cu_query_lens[at + 1] - 1
    token_at = np.arange(batch.num_tokens)
    token_at[num_decodes:] += key.decodes - num_decodes
    host.token_slots[token_at] = np.repeat(host.slots[at], plan.num_tokens)
    host.positions[token_at] = _positions(plan, batch)
    return at


def input_arrays(plan: StepPlan, batch: HostBatch) -> dict[str, NDArray[np.generic]]:
    """The host's part of `model_inputs`, for the step's one copy to the device."""
    arrays = _row_arrays(plan, batch)
    if batch.prefixes is not None:
        arrays["prefixes"] = batch.prefixes.pack(batch.num_decodes)
    return arrays


def last_token_arrays(batch: HostBatch) -> dict[str, NDArray[np.generic]]:
    """Which tokens' hidden states yield a token, where not all do."""
    if len(batch.sample_rows) == batch.num_tokens:
        return {}
    return {"last_tokens": batch.cu_query_lens[1:][batch.sample_rows].astype(np.int64) - 1}


def table_arrays(plan: StepPlan, update: TableUpdate) -> dict[str, NDArray[np.generic]]:
    """What `update_tables` writes: new rows' tokens, new blocks."""
    arrays: dict[str, NDArray[np.generic]] = {}
    if len(update.values):
        arrays["table_positions"], arrays["table_values"] = update.positions, update.values
    for index, row in enumerate(plan.admitted):
        arrays[f"tokens_{index}"] = row.token_ids.astype(np.int32, copy=False)
    return arrays


def update_tables(plan: StepPlan, sent: Mapping[str, Tensor], tables: SlotTables) -> None:
    """Writes new rows' tokens and new blocks into the device's tables."""
    for index, row in enumerate(plan.admitted):
        tables.write_tokens(row.slot, sent[f"tokens_{index}"])
    if "table_positions" in sent:
        tables.flat_tables.index_copy_(0, sent["table_positions"], sent["table_values"])


def model_inputs(
    batch: HostBatch, sent: Mapping[str, Tensor], tables: SlotTables, group_metadata: GroupMetadata
) -> ModelInputs:
    """Reads token ids and cache places from the tables, on the device."""
    positions = sent["positions"]
    token_slots = sent.get("token_slots", sent["slots"])
    rows = StepRows(
        slots=sent["slots"],
        token_slots=token_slots,
        positions=positions,
        cu_query_lens=sent["cu_query_lens"],
        context_lens=sent["context_lens"],
        num_decodes=batch.num_decodes,
        max_query_len=batch.max_query_len,
        max_context_len=batch.max_context_len,
        shared_prefix=unpack_prefixes(sent["prefixes"], batch.num_decodes) if "prefixes" in sent else None,
    )
    input_ids = tables.token_ids[token_slots, positions].long()
    return ModelInputs(input_ids, group_metadata.build(rows))


def _row_arrays(plan: StepPlan, batch: HostBatch) -> dict[str, NDArray[np.generic]]:
    arrays: dict[str, NDArray[np.generic]] = {
        "slots": plan.slots.astype(np.int64),
        "positions": _positions(plan, batch),
        "cu_query_lens": batch.cu_query_lens,
        "context_lens": batch.context_lens,
    }
    if batch.max_query_len > 1:
        arrays["token_slots"] = np.repeat(arrays["slots"], plan.num_tokens)
    return arrays


def _positions(plan: StepPlan, batch: HostBatch) -> NDArray[np.int64]:
    if batch.max_query_len == 1:
        return plan.num_computed.astype(np.int64)
    shift = plan.num_computed.astype(np.int64) - batch.cu_query_lens[:-1]
    return np.arange(batch.num_tokens, dtype=np.int64) + np.repeat(shift, plan.num_tokens)
