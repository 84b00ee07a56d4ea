"""Runs step plans on one device: tables, inputs, model, draw; an assembly of the parts beside it.

On a GPU `launch` only queues work; nothing in it waits for the device. On a CPU the step is done when it
returns.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from llm_models.model import Model
from llm_scheduler import StepPlan
from torch import Tensor

from llm_engine.worker.block_transfers import BlockTransfers
from llm_engine.worker.decode_graphs import DecodeGraphs
from llm_engine.worker.decode_step import DecodeStep
from llm_engine.worker.graph_buckets import GraphBuckets, GraphKey
from llm_engine.worker.group_metadata import GroupMetadata
from llm_engine.worker.input_batch import HostBatch, input_arrays, measure, model_inputs, update_tables
from llm_engine.worker.kv_groups import KVLayout
from llm_engine.worker.kv_pool import KVPool
from llm_engine.worker.pending_step import Launched, PendingStep, PromptChunk
from llm_engine.worker.prompt_logprobs import score_positions
from llm_engine.worker.sampler import Sampled, SamplingPlan, draw, plan_sampling
from llm_engine.worker.slot_params import SlotParams
from llm_engine.worker.slot_tables import SlotTables, TableUpdate
from llm_engine.worker.upload import upload


class ModelRunner:
    """The state of one rank between steps, and the step.

    Args:
        model: The decoder, loaded.
        pool: The memory of the KV cache.
        layout: The KV groups that `pool` was allocated for.
        num_slots: Rows that can be live at once.
        max_model_len: Longest sequence in tokens.
        sampled_vocab_size: Ids at and above it are never drawn; None: all may be.
        graphs: Capture decode steps as CUDA graphs; needs a model on a CUDA device.
        host_blocks: Blocks of the host cache; 0 for none.

    Attributes:
        num_graph_steps: Steps that replayed a graph.
        num_eager_steps: Steps that launched kernel by kernel.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        layout: KVLayout,
        *,
        num_slots: int,
        max_model_len: int,
        sampled_vocab_size: int | None = None,
        graphs: bool = False,
        host_blocks: int = 0,
    ) -> None:
        self.model = model
        self.caches = pool.caches
        self.device = model.device
        self.sampled_vocab_size = sampled_vocab_size
        self.tables = SlotTables(num_slots, max_model_len, layout.groups, self.device)
        self.group_metadata = GroupMetadata(self.tables, layout.cache_groups())
        self.params = SlotParams(num_slots)
        self._transfers = BlockTransfers(pool.storages, host_blocks)
        self.num_graph_steps = self.num_eager_steps = 0
        self._graphs = self._make_graphs() if graphs else None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep:
        """Runs a plan. Plans must come in order; two may be in flight.

        Raises:
            PlanError: The plan does not fit the slots.
        """
        update = self._apply_admissions(plan)
        batch = measure(plan, self.tables)
        rows = batch.sample_rows
        sampling = self._plan_sampling(plan, batch)
        key = self._graph_for(batch)
        arrays = input_arrays(plan, batch, update, padded_rows=None if key is None else key.rows)
        if sampling is not None:
            arrays.update(sampling.arrays)
        sent = upload(arrays, self.device)
        update_tables(plan, sent, self.tables)
        self._transfers.carry_out(plan.transfers)
        hidden_TE = self._forward(batch, sent, key)
        chunks, faults = self._score_prompts(plan, batch, hidden_TE)
        sampled = None if sampling is None else self._draw(sampling, hidden_TE, sent)
        launched = Launched(
            step_id=plan.step_id,
            num_rows=plan.num_rows,
            sample_rows=rows,
            sampled=sampled,
            logprob_rows=_logprob_rows(sampling, rows),
            prompt_chunks=chunks,
            faults=faults,
        )
        return PendingStep(launched, self._record_event())

    def reset(self) -> None:
        """Forgets every slot."""
        every = np.arange(self.tables.num_slots, dtype=np.int32)
        self.tables.release(every)
        self.params.release(every)

    def _make_graphs(self) -> DecodeGraphs:
        buckets = GraphBuckets(self.tables.num_slots, self.tables.max_tokens)
        step = DecodeStep(self.model, self.caches, self.tables, self.group_metadata, buckets.rows[-1])
        return DecodeGraphs(step, buckets, self.device)

    def _graph_for(self, batch: HostBatch) -> GraphKey | None:
        """The graph of a step whose rows all have one token; what is done with its output does not matter."""
        if self._graphs is None or batch.max_query_len > 1:
            return None
        return self._graphs.prepare(batch.num_tokens, batch.max_context_len)

    def _forward(self, batch: HostBatch, sent: Mapping[str, Tensor], key: GraphKey | None) -> Tensor:
        """Hidden states of the step's tokens, [T, E]."""
        if self._graphs is not None and key is not None:
            self.num_graph_steps += 1
            return self._graphs.replay(key, sent["packed_rows"])[: batch.num_tokens]
        self.num_eager_steps += 1
        inputs = model_inputs(batch, sent, self.tables, self.group_metadata)
        return self.model.forward(inputs.input_ids, inputs.metadata, self.caches)

    def _apply_admissions(self, plan: StepPlan) -> TableUpdate:
        self.tables.release(plan.released)
        self.params.release(plan.released)
        for row in plan.admitted:
            self.tables.admit(row)
            self.params.admit(row)
        return self.tables.append_blocks(plan.slots, plan.new_blocks)

    def _plan_sampling(self, plan: StepPlan, batch: HostBatch) -> SamplingPlan | None:
        rows = batch.sample_rows
        if not rows.size:
            return None
        return plan_sampling(self.params, plan.slots[rows], batch.context_lens[rows], self.tables.max_tokens)

    def _logits(self, hidden_RE: Tensor) -> Tensor:
        """Scores of the ids that may be drawn, in the model's dtype."""
        return self.model.raw_logits(hidden_RE)[:, : self.sampled_vocab_size]

    def _draw(self, sampling: SamplingPlan, hidden_TE: Tensor, sent: Mapping[str, Tensor]) -> Sampled:
        last = sent.get("last_tokens")
        logits_EV = self._logits(hidden_TE if last is None else hidden_TE.index_select(0, last))
        return draw(sampling, logits_EV, sent, self.tables)

    def _score_prompts(
        self, plan: StepPlan, batch: HostBatch, hidden_TE: Tensor
    ) -> tuple[dict[int, PromptChunk], dict[int, str]]:
        """Logprobs of prompt tokens, for the rows that still owe some."""
        chunks: dict[int, PromptChunk] = {}
        faults: dict[int, str] = {}
        for row in np.flatnonzero(self.params.wants_prompt_logprobs[plan.slots]).tolist():
            slot, begin = int(plan.slots[row]), int(plan.num_computed[row])
            collector = self.params.prompt_logprobs[slot]
            if begin != collector.planned:
                self.params.drop_prompt_logprobs(slot)
                faults[row] = (
                    f"prompt logprobs: position {collector.planned} was never computed; "
                    "the request must not match cached prefixes"
                )
                continue
            collector.planned = begin + int(plan.num_tokens[row])
            # The last prompt token has no successor in the prompt.
            end = min(collector.planned, collector.num_prompt_tokens - 1)
            targets = self.tables.token_ids[slot, begin + 1 : end + 1].long()
            start = int(batch.cu_query_lens[row])
            hidden = hidden_TE[start : start + end - begin]
            entries = score_positions(hidden, targets, collector.num_top, self._logits)
            is_last = collector.planned >= collector.num_prompt_tokens
            chunks[row] = PromptChunk(collector, entries, is_last)
            if is_last:
                self.params.drop_prompt_logprobs(slot)
        return chunks, faults

    def _record_event(self) -> torch.cuda.Event | None:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event


def _logprob_rows(sampling: SamplingPlan | None, sample_rows: np.ndarray) -> list[tuple[int, int]]:
    if sampling is None or not sampling.num_logprobs:
        return []
    rows = sample_rows[sampling.arrays["sample_logprob_rows"]].tolist()
    return list(zip(rows, sampling.num_logprobs, strict=True))
