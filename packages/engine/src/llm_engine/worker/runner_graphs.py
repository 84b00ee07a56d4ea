"""Assembles the captured steps of a model runner: decode steps, and small steps with prompts."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from llm_models.model import Model
from torch import Tensor

from llm_engine.worker.capture_policy import CapturePolicy
from llm_engine.worker.decode_layout import DecodeLayout, DeviceDecode, HostDecode
from llm_engine.worker.decode_step import DecodeStep
from llm_engine.worker.graph_buckets import GraphBuckets, GraphKey
from llm_engine.worker.graph_capture import Capture
from llm_engine.worker.group_metadata import GroupMetadata
from llm_engine.worker.kv_pool import Caches
from llm_engine.worker.mixed_layout import DeviceMixed, HostMixed, MixedKey, MixedLayout
from llm_engine.worker.mixed_policy import (
    LARGEST_DECODES,
    LARGEST_PROMPTS,
    LEAST_LARGEST_TOKENS,
    MixedPolicy,
    hiding_tokens,
    largest_tokens,
)
from llm_engine.worker.mixed_step import MixedStep
from llm_engine.worker.slot_tables import SlotTables
from llm_engine.worker.step_graphs import GraphBudget, StepGraphs, StepKind

DecodeGraphs: TypeAlias = StepGraphs[GraphKey, HostDecode, DeviceDecode]
MixedGraphs: TypeAlias = StepGraphs[MixedKey, HostMixed, DeviceMixed]


class RunnerGraphs:
    """All graphs of one model, with one budget.

    Args:
        model: The decoder.
        caches: Its caches' tensors.
        tables: The slots' tokens and block tables.
        group_metadata: Describes the rows to each cache.
        capture: Makes a graph of a function.
        sampled_vocab_size: Ids at and above it are never drawn; None: all may be.
        memory_bytes: Device memory that the graphs may take.
        lockstep: Whether other ranks run the same steps.

    Attributes:
        budget: Makes the graphs.
        decode: Steps whose rows have one token each.
        decode_policy: Which of them are captured.
        mixed: Small steps with prompts; None for models with recurrent states, where every token of a step
            must be a row's own.
        mixed_policy: Which of them are captured.
    """

    def __init__(
        self,
        model: Model,
        caches: Caches,
        tables: SlotTables,
        group_metadata: GroupMetadata,
        capture: Capture,
        *,
        sampled_vocab_size: int | None,
        memory_bytes: int,
        lockstep: bool,
    ) -> None:
        buckets = GraphBuckets(tables.num_slots)
        most = buckets.rows[-1]
        self.budget = GraphBudget(capture, memory_bytes)
        # Ranks need not hold equally many parameters, but must choose alike.
        num_parameters = sum(weight.numel() for weight in model.parameters())
        self.decode_policy = CapturePolicy(
            buckets, num_parameters=0 if lockstep else num_parameters, lockstep=lockstep
        )
        most_tokens = LEAST_LARGEST_TOKENS if lockstep else largest_tokens(num_parameters)
        self.mixed_policy = MixedPolicy(
            most_tokens, hides_from=None if lockstep else hiding_tokens(num_parameters), lockstep=lockstep
        )
        decode = DecodeStep(
            model, caches, tables, group_metadata, most, sampled_vocab_size, apart=capture.apart
        )
        num_groups = len(tables.table_order)
        self.decode: DecodeGraphs = StepGraphs(
            StepKind(
                layout=lambda key: DecodeLayout(key.rows, num_groups),
                run=partial(_run_decode, decode),
                describe=_describe_decode,
            ),
            self.budget,
            self.decode_policy.failed,
            DecodeLayout(most, num_groups).num_bytes,
            model.device,
        )
        self.mixed: MixedGraphs | None = None
        if all(family.has_slots for family in tables.families):
            mixed = MixedStep(model, caches, tables, group_metadata, sampled_vocab_size, apart=capture.apart)
            self.mixed = StepGraphs(
                StepKind(layout=MixedLayout, run=mixed.tokens, describe=_describe_mixed),
                self.budget,
                self.mixed_policy.failed,
                MixedLayout(MixedKey(most_tokens, LARGEST_DECODES, LARGEST_PROMPTS)).num_bytes,
                model.device,
            )


def _run_decode(step: DecodeStep, key: GraphKey, inputs: DeviceDecode) -> Tensor:
    if key.draws:
        return step.tokens(inputs, shares=key.shares, filters=key.filters)
    return step.hidden(inputs, shares=key.shares)


def _describe_decode(key: GraphKey) -> str:
    parts = [name for name in ("draws", "filters", "shares") if getattr(key, name)]
    return f"the decode of {key.rows} rows ({', '.join(parts) or 'hidden states'})"


def _describe_mixed(key: MixedKey) -> str:
    return f"the step of {key.tokens} tokens, {key.decodes} decode rows, {key.prompts} prompts"
