"""Chooses the tokens of a step's rows, from host columns to the draw; knows nothing of the model.

What needs a decision (is anything random, which rows filter) is decided from the host's columns. The RNG
counter is the index of the drawn token in its sequence, so draws do not depend on chunking, batching or
preemption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from llm_kernels.ops import Penalties, SamplingBatch, sample, token_ranks
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.worker.grammar_rows import TokenMasks
from llm_engine.worker.logprobs import HostRanks
from llm_engine.worker.slot_params import NO_LOGPROBS, SlotParams
from llm_engine.worker.slot_tables import SlotTables
from llm_engine.worker.upload import download


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Host-side decisions for the E rows that yield a token.

    Attributes:
        arrays: For the step's one copy to the device; names start with "sample_".
        all_greedy: Nothing is random.
        max_top_k: Largest top_k.
        any_top_p: Some row uses it.
        any_min_p: Some row uses it.
        every_top_p_has_top_k: No row needs a full sort.
        longest_penalised: Most known tokens of a row with penalties; 0: no such row.
        num_logprobs: For each entry of `sample_logprob_rows`, how many likely tokens it wants.
    """

    arrays: dict[str, NDArray[np.generic]]
    all_greedy: bool
    max_top_k: int
    any_top_p: bool
    any_min_p: bool
    every_top_p_has_top_k: bool
    longest_penalised: int
    num_logprobs: list[int]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens on their way to the host.

    Attributes:
        tokens: int32 on the host, -1 where the row's logits were broken.
        entries: int64[E], which of them are the rows'; None: the first E.
        logprobs: Of the rows that want them, or None.
    """

    tokens: Tensor
    logprobs: HostRanks | None = None
    entries: NDArray[np.int64] | None = None


def plan_sampling(
    params: SlotParams, slots: NDArray[np.int32], positions: NDArray[np.int32], table_width: int
) -> SamplingPlan:
    """Gathers the parameters of the rows that yield a token.

    Args:
        params: All slots' parameters.
        slots: int32[E].
        positions: int32[E], where the new tokens will stand.
        table_width: Columns of the token table.
    """
    temperature, top_k = params.temperature[slots], params.top_k[slots]
    top_p, min_p = params.top_p[slots], params.min_p[slots]
    # Greedy rows need no filters: none of them removes the largest logit.
    random = temperature > 0
    top_k = np.where(random, top_k, 0)
    uses_top_p, uses_min_p = random & (top_p < 1), random & (min_p > 0)
    filtered = uses_top_p | uses_min_p | (top_k > 0)
    penalised = np.flatnonzero(params.has_penalties[slots])
    wants_logprobs = np.flatnonzero(params.num_logprobs[slots] != NO_LOGPROBS)
    arrays: dict[str, NDArray[np.generic]] = {
        "sample_places": slots.astype(np.int64) * table_width + positions,
        "sample_seeds": params.seeds[slots],
        "sample_positions": positions.astype(np.int64),
        "sample_temperature": temperature,
        "sample_top_p": np.where(random, top_p, np.float32(1)),
        "sample_min_p": np.where(random, min_p, np.float32(0)),
        "sample_top_k": top_k.astype(np.int32),
        "sample_filtered": np.flatnonzero(filtered),
        "sample_logprob_rows": wants_logprobs,
    }
    arrays.update(_penalty_arrays(params, slots, positions, penalised))
    arrays.update(_bias_arrays(params, slots))
    arrays.update(_banned_arrays(params, slots, positions))
    return SamplingPlan(
        arrays=arrays,
        all_greedy=not random.any(),
        max_top_k=int(top_k.max(initial=0)),
        any_top_p=bool(uses_top_p.any()),
        any_min_p=bool(uses_min_p.any()),
        every_top_p_has_top_k=bool((~uses_top_p | (top_k > 0)).all()),
        longest_penalised=int(positions[penalised].max(initial=0)),
        num_logprobs=params.num_logprobs[slots][wants_logprobs].tolist(),
    )


def draw(
    plan: SamplingPlan,
    logits: Tensor,
    sent: Mapping[str, Tensor],
    tables: SlotTables,
    masks: TokenMasks | None = None,
) -> Sampled:
    """Samples, writes the tokens into the token table and starts their way to the host.

    Args:
        plan: From `plan_sampling`.
        logits: [E, V], float32 or a half format.
        sent: The step's arrays on the device.
        tables: Its token table is written.
        masks: What rows with a grammar may take; logprobs are those of the scores without it.
    """
    if plan.num_logprobs:
        logits = logits.float()
    allowed = logits if masks is None else masks.apply(logits)
    output = sample(allowed, _batch(plan, sent, tables, logits.shape[1]))
    tokens_E = output.tokens.to(torch.int32)
    tables.token_ids.view(-1).index_copy_(0, sent["sample_places"], tokens_E)
    ranks = None
    if plan.num_logprobs:
        every = len(plan.num_logprobs) == logits.shape[0]
        rows = sent["sample_logprob_rows"]
        tokens = output.tokens if every else output.tokens.index_select(0, rows)
        scored = token_ranks(
            logits if every else logits.index_select(0, rows), tokens, max(plan.num_logprobs)
        )
        ranks = HostRanks.start(tokens, scored)
    return Sampled(download(tokens_E.masked_fill_(output.faults, -1)), ranks)


def _batch(
    plan: SamplingPlan, sent: Mapping[str, Tensor], tables: SlotTables, vocab_size: int
) -> SamplingBatch:
    bias = banned = None
    if "sample_bias_rows" in sent:
        bias = sent["sample_bias_rows"], sent["sample_bias_tokens"], sent["sample_bias_values"]
    if "sample_banned_rows" in sent:
        banned = sent["sample_banned_rows"], sent["sample_banned_tokens"]
    return SamplingBatch(
        temperature=sent["sample_temperature"],
        top_p=sent["sample_top_p"],
        min_p=sent["sample_min_p"],
        top_k=sent["sample_top_k"],
        seeds=sent["sample_seeds"],
        positions=sent["sample_positions"],
        all_greedy=plan.all_greedy,
        max_top_k=plan.max_top_k,
        any_top_p=plan.any_top_p,
        any_min_p=plan.any_min_p,
        every_top_p_has_top_k=plan.every_top_p_has_top_k,
        filtered_rows=sent["sample_filtered"],
        penalties=_penalties(plan, sent, tables, vocab_size) if plan.longest_penalised else None,
        logit_bias=bias,
        banned=banned,
    )


def _penalties(
    plan: SamplingPlan, sent: Mapping[str, Tensor], tables: SlotTables, vocab_size: int
) -> Penalties:
    """Counts the penalised rows' tokens in the token table, so that nothing must be kept up to date."""
    slots, lengths, prompts = sent["sample_pen_slots"], sent["sample_pen_lengths"], sent["sample_pen_prompts"]
    tokens_PL = tables.token_ids[:, : plan.longest_penalised].index_select(0, slots).long()
    place = torch.arange(plan.longest_penalised, device=tokens_PL.device)[None, :]
    # Positions that do not count, and tokens the sampler cannot draw, go to a column of their own, cut off
    # below.
    counted = tokens_PL < vocab_size
    is_prompt = (place < prompts[:, None]) & counted
    is_output = (place >= prompts[:, None]) & (place < lengths[:, None]) & counted
    shape = (tokens_PL.shape[0], vocab_size + 1)
    counts = torch.zeros(shape, dtype=torch.int32, device=tokens_PL.device)
    counts.scatter_add_(1, torch.where(is_output, tokens_PL, vocab_size), is_output.to(torch.int32))
    prompt_mask = torch.zeros(shape, dtype=torch.bool, device=tokens_PL.device)
    prompt_mask.scatter_(1, torch.where(is_prompt, tokens_PL, vocab_size), value=True)
    return Penalties(
        presence=sent["sample_pen_presence"],
        frequency=sent["sample_pen_frequency"],
        repetition=sent["sample_pen_repetition"],
        output_counts=counts[:, :vocab_size],
        prompt_mask=prompt_mask[:, :vocab_size],
        rows=sent["sample_pen_rows"],
    )


def _penalty_arrays(
    params: SlotParams, slots: NDArray[np.int32], positions: NDArray[np.int32], rows: NDArray[np.int64]
) -> dict[str, NDArray[np.generic]]:
    if not rows.size:
        return {}
    penalised = slots[rows]
    return {
        "sample_pen_rows": rows,
        "sample_pen_slots": penalised.astype(np.int64),
        "sample_pen_lengths": positions[rows].astype(np.int64),
        "sample_pen_prompts": params.num_prompt_tokens[penalised].astype(np.int64),
        "sample_pen_presence": params.presence[penalised],
        "sample_pen_frequency": params.frequency[penalised],
        "sample_pen_repetition": params.repetition[penalised],
    }


def _bias_arrays(params: SlotParams, slots: NDArray[np.int32]) -> dict[str, NDArray[np.generic]]:
    rows = np.flatnonzero(params.has_bias[slots])
    if not rows.size:
        return {}
    biases = [params.bias[slot] for slot in slots[rows].tolist()]
    return {
        "sample_bias_rows": np.repeat(rows, [len(bias.tokens) for bias in biases]),
        "sample_bias_tokens": np.concatenate([bias.tokens for bias in biases]),
        "sample_bias_values": np.concatenate([bias.values for bias in biases]),
    }


def _banned_arrays(
    params: SlotParams, slots: NDArray[np.int32], positions: NDArray[np.int32]
) -> dict[str, NDArray[np.generic]]:
    rows = np.flatnonzero(positions < params.stop_allowed_from[slots])
    if not rows.size:
        return {}
    tokens = [params.stop_ids[slot] for slot in slots[rows].tolist()]
    return {
        "sample_banned_rows": np.repeat(rows, [len(ids) for ids in tokens]),
        "sample_banned_tokens": np.concatenate(tokens),
    }
