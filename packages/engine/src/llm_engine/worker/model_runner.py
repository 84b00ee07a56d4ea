"""Runs step plans on one device: tables, inputs, model, draw; an assembly of the parts beside it.

On a GPU `launch` only queues work; nothing in it waits for the device. On a CPU the step is done when it
returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from llm_kernels import ops
from llm_models.model import Model
from llm_scheduler import StepPlan
from numpy.typing import NDArray
from torch import Tensor

from llm_engine.grammar.background import BackgroundCompiler
from llm_engine.worker.block_transfers import BlockTransfers
from llm_engine.worker.capture_policy import Choice
from llm_engine.worker.grammar_rows import GrammarRows, TokenMasks
from llm_engine.worker.graph_buckets import GraphKey
from llm_engine.worker.graph_capture import Capture
from llm_engine.worker.group_metadata import GroupMetadata
from llm_engine.worker.input_batch import (
    HostBatch,
    fill_decode,
    fill_mixed,
    input_arrays,
    last_token_arrays,
    measure,
    model_inputs,
    table_arrays,
    update_tables,
)
from llm_engine.worker.kv_groups import KVLayout
from llm_engine.worker.kv_pool import KVPool
from llm_engine.worker.mixed_policy import LARGEST_DECODES, LARGEST_PROMPTS, MixedChoice
from llm_engine.worker.pending_step import Launched, PendingStep, PromptChunk
from llm_engine.worker.prompt_logprobs import score_positions
from llm_engine.worker.runner_graphs import DecodeGraphs, MixedGraphs, RunnerGraphs
from llm_engine.worker.sampler import Sampled, SamplingPlan, draw, plan_sampling
from llm_engine.worker.shared_prefix import SharedPrefixes
from llm_engine.worker.slot_params import SlotParams
from llm_engine.worker.slot_tables import SlotTables, TableUpdate
from llm_engine.worker.step_graphs import StepGraphs
from llm_engine.worker.upload import TokenRing, upload

K = TypeVar("K")


class ModelRunner:
    """The state of one rank between steps, and the step.

    Args:
        model: The decoder, loaded.
        pool: The memory of the KV cache.
        layout: The KV groups that `pool` was allocated for.
        num_slots: Rows that can be live at once.
        max_model_len: Longest sequence in tokens.
        sampled_vocab_size: Ids at and above it are never drawn; None: all may be.
        host_blocks: Blocks of the host cache; 0 for none.
        grammars: Compiles the grammars of requests before they are admitted; None: there is no tokenizer.
        batch_invariant: Results of a row do not depend on the others: slower kernels, and shared prefixes are
            read row by row.

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
        host_blocks: int = 0,
        grammars: BackgroundCompiler | None = None,
        batch_invariant: bool = False,
    ) -> None:
        self.model = model
        self._batch_invariant = batch_invariant
        self.caches = pool.caches
        self.device = model.device
        self.sampled_vocab_size = sampled_vocab_size
        self.tables = SlotTables(num_slots, max_model_len, layout.groups, self.device)
        sharing = [index for index, group in enumerate(layout.groups) if group.kind == "full"]
        self.group_metadata = GroupMetadata(self.tables, layout.cache_groups(), sharing)
        self._shared = SharedPrefixes(self.tables, () if batch_invariant else layout.groups)
        self._token_ring = TokenRing(num_slots + LARGEST_DECODES + LARGEST_PROMPTS, self.device)
        self.params = SlotParams(num_slots)
        self._grammars = GrammarRows(grammars)
        self._transfers = BlockTransfers(pool.storages, host_blocks)
        self.num_graph_steps = self.num_eager_steps = 0
        self._graphs: RunnerGraphs | None = None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep:
        """Runs a plan. Plans must come in order; two may be in flight.

        Raises:
            PlanError: The plan does not fit the slots.
        """
        update = self._apply_admissions(plan)
        batch = measure(plan, self.tables, self._shared)
        with self._kernels():
            tried = self._num_tried()
            pending = self._launch_as_graph(plan, batch, update)
            if pending is None:
                pending = self._launch_eagerly(plan, batch, update)
            if tried == self._num_tried():
                self._capture_behind(plan, batch)
            self._grammars.note(plan, batch.sample_rows, pending.result)
            return pending

    @torch.inference_mode()
    def capture_one(self) -> bool:
        """Captures the decode size that was missed most, while no step is on its way.

        Returns:
            Whether there was one.
        """
        key = None if self._graphs is None else self._graphs.decode_policy.most_wanted()
        if self._graphs is None or key is None:
            return False
        with self._kernels():
            self._graphs.decode.capture_apart(key)
        return True

    def _kernels(self) -> AbstractContextManager[None]:
        """Where steps are launched and captured: which kernels the ops choose there."""
        return ops.batch_invariant() if self._batch_invariant else nullcontext()

    def reset(self) -> None:
        """Forgets every slot."""
        every = np.arange(self.tables.num_slots, dtype=np.int32)
        self.tables.release(every)
        self.params.release(every)
        self._grammars.release(every)

    def close(self) -> None:
        """Ends its threads."""
        self._grammars.close()

    def use_graphs(self, capture: Capture, *, memory_bytes: int, lockstep: bool = False) -> None:
        """Runs decode steps padded to few sizes from now on, as graphs where they could be captured.

        Args:
            capture: Makes a graph of a function.
            memory_bytes: Device memory that the graphs may take.
            lockstep: Whether other ranks run the same steps.
        """
        self._graphs = RunnerGraphs(
            self.model,
            self.caches,
            self.tables,
            self.group_metadata,
            capture,
            sampled_vocab_size=self.sampled_vocab_size,
            memory_bytes=memory_bytes,
            lockstep=lockstep,
        )

    def _launch_as_graph(self, plan: StepPlan, batch: HostBatch, update: TableUpdate) -> PendingStep | None:
        """A step padded to a size that has a graph or will have; None: there is none for it."""
        graphs = self._graphs
        if graphs is None:
            return None
        wanted = self._decode_of(plan, batch)
        if batch.num_decodes == plan.num_rows:
            choice = graphs.decode_policy.choose(wanted)
            return None if choice is None else self._launch_decode(graphs.decode, choice, plan, batch, update)
        if not wanted.draws or wanted.shares or graphs.mixed is None:
            return None
        mixed = graphs.mixed_policy.choose(
            batch.num_tokens, batch.num_decodes, plan.num_rows - batch.num_decodes, filters=wanted.filters
        )
        return None if mixed is None else self._launch_mixed(graphs.mixed, mixed, plan, batch, update)

    def _capture_behind(self, plan: StepPlan, batch: HostBatch) -> None:
        """Captures a decode step that will be needed, while the device is busy with prompts.

        At most one a launch: the ring of the steps' words has room for that. None behind a step that was
        captured itself, which took the host long enough.
        """
        if self._graphs is None or batch.num_decodes == plan.num_rows:
            return
        key = self._graphs.decode_policy.behind_prompts(self._decode_of(plan, batch), batch.num_tokens)
        if key is not None:
            self._graphs.decode.capture_apart(key)

    def _num_tried(self) -> int:
        return 0 if self._graphs is None else self._graphs.budget.num_tried

    def _decode_of(self, plan: StepPlan, batch: HostBatch) -> GraphKey:
        """The kind of the step that decodes a plan's rows, unpadded."""
        plain = self.params.all_plain(plan.slots, batch.context_lens)
        filters = plain and bool(self.params.has_filters[plan.slots].any())
        return GraphKey(plan.num_rows, draws=plain, filters=filters, shares=batch.prefixes is not None)

    def _launch_decode(
        self, graphs: DecodeGraphs, choice: Choice, plan: StepPlan, batch: HostBatch, update: TableUpdate
    ) -> PendingStep:
        """A step whose rows all have one token."""
        key = choice.key
        host = graphs.host_arrays(key)
        fill_decode(host, plan, batch, self.tables, self.params, filters=key.filters)
        if batch.prefixes is not None:
            host.prefixes[:] = batch.prefixes.pack(key.rows)
        arrays: dict[str, NDArray[np.generic]] = {}
        if plan.admitted or update.most_per_row > 1:
            arrays = table_arrays(plan, update)
        else:
            update.spread(self.tables.table_order, host.new_columns, host.new_blocks)
        sampling = None if key.draws else self._plan_sampling(plan, batch)
        if sampling is not None:
            arrays.update(sampling.arrays)
            arrays.update(last_token_arrays(batch))
        sent = self._prepare(plan, arrays)
        output = self._run(graphs, key, captures=choice.captures)
        if key.draws:
            pending = self._fetch(plan, batch, output, None)
        else:
            pending = self._finish(plan, batch, output[: plan.num_rows], sampling, sent)
        graphs.capture_due()
        return pending

    def _launch_mixed(
        self, graphs: MixedGraphs, choice: MixedChoice, plan: StepPlan, batch: HostBatch, update: TableUpdate
    ) -> PendingStep:
        """A small step with prompts."""
        key = choice.key
        rows = fill_mixed(graphs.host_arrays(key), key, plan, batch, self.tables, self.params)
        self._prepare(plan, table_arrays(plan, update))
        output = self._run(graphs, key, captures=choice.captures)
        pending = self._fetch(plan, batch, output, rows)
        graphs.capture_due()
        return pending

    def _prepare(self, plan: StepPlan, arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Tensor]:
        """Sends arrays, and brings tables and caches to where the step expects them."""
        sent = upload(arrays, self.device) if arrays else {}
        update_tables(plan, sent, self.tables)
        self._transfers.carry_out(plan.transfers)
        return sent

    def _run(self, graphs: StepGraphs[K, Any, Any], key: K, *, captures: bool) -> Tensor:
        replays = graphs.num_replays
        output = graphs.run(key, captures=captures)
        self.num_graph_steps += graphs.num_replays - replays
        self.num_eager_steps += 1 - (graphs.num_replays - replays)
        return output

    def _fetch(
        self, plan: StepPlan, batch: HostBatch, tokens: Tensor, rows: NDArray[np.int64] | None
    ) -> PendingStep:
        """Starts the way of drawn tokens to the host; `rows`: where the plan's stand, None: in order."""
        entries: NDArray[np.int64] | None = batch.sample_rows
        if rows is not None:
            entries = rows[batch.sample_rows]
        elif len(batch.sample_rows) == plan.num_rows:
            entries = None
        host = self._token_ring.fetch(tokens)
        return self._pending(plan, batch, Sampled(host, entries=entries) if batch.sample_rows.size else None)

    def _launch_eagerly(self, plan: StepPlan, batch: HostBatch, update: TableUpdate) -> PendingStep:
        """A step of any rows, unpadded, kernel by kernel."""
        sampling = self._plan_sampling(plan, batch)
        arrays = input_arrays(plan, batch)
        arrays.update(table_arrays(plan, update))
        if sampling is not None:
            arrays.update(sampling.arrays)
            arrays.update(last_token_arrays(batch))
        sent = self._prepare(plan, arrays)
        self.num_eager_steps += 1
        inputs = model_inputs(batch, sent, self.tables, self.group_metadata)
        if sampling is not None and self.device.type == "cpu":
            self._grammars.begin(plan, batch.sample_rows)
        hidden_TE = self.model.forward(inputs.input_ids, inputs.metadata, self.caches)
        return self._finish(plan, batch, hidden_TE, sampling, sent)

    def _finish(
        self,
        plan: StepPlan,
        batch: HostBatch,
        hidden_TE: Tensor,
        sampling: SamplingPlan | None,
        sent: Mapping[str, Tensor],
    ) -> PendingStep:
        """Everything after the hidden states of the step's tokens, [T, E]."""
        chunks, faults = self._score_prompts(plan, batch, hidden_TE)
        masks = None if sampling is None else self._grammars.masks(plan, batch.sample_rows, faults)
        sampled = None if sampling is None else self._draw(sampling, hidden_TE, sent, masks)
        ranked = _logprob_rows(sampling, batch.sample_rows)
        return self._pending(plan, batch, sampled, ranked, chunks, faults)

    def _pending(
        self,
        plan: StepPlan,
        batch: HostBatch,
        sampled: Sampled | None,
        logprob_rows: Sequence[tuple[int, int]] = (),
        chunks: Mapping[int, PromptChunk] | None = None,
        faults: Mapping[int, str] | None = None,
    ) -> PendingStep:
        launched = Launched(
            step_id=plan.step_id,
            num_rows=plan.num_rows,
            sample_rows=batch.sample_rows,
            sampled=sampled,
            logprob_rows=logprob_rows,
            prompt_chunks=chunks or {},
            faults=faults or {},
        )
        return PendingStep(launched, self._token_ring.mark())

    def _apply_admissions(self, plan: StepPlan) -> TableUpdate:
        self.tables.release(plan.released)
        self.params.release(plan.released)
        self._grammars.release(plan.released)
        for row in plan.admitted:
            self.tables.admit(row)
            self.params.admit(row)
            self._grammars.admit(row)
        update = self.tables.append_blocks(plan.slots, plan.new_blocks)
        self._shared.note(update, changed=bool(plan.admitted) or len(plan.released) > 0)
        return update

    def _plan_sampling(self, plan: StepPlan, batch: HostBatch) -> SamplingPlan | None:
        rows = batch.sample_rows
        if not rows.size:
            return None
        return plan_sampling(self.params, plan.slots[rows], batch.context_lens[rows], self.tables.max_tokens)

    def _logits(self, hidden_RE: Tensor) -> Tensor:
        """Scores of the ids that may be drawn, in the model's dtype."""
        return self.model.raw_logits(hidden_RE)[:, : self.sampled_vocab_size]

    def _draw(
        self,
        sampling: SamplingPlan,
        hidden_TE: Tensor,
        sent: Mapping[str, Tensor],
        masks: TokenMasks | None,
    ) -> Sampled:
        last = sent.get("last_tokens")
        logits_EV = self._logits(hidden_TE if last is None else hidden_TE.index_select(0, last))
        return draw(sampling, logits_EV, sent, self.tables, masks)

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


def _logprob_rows(sampling: SamplingPlan | None, sample_rows: np.ndarray) -> list[tuple[int, int]]:
    if sampling is None or not sampling.num_logprobs:
        return []
    rows = sample_rows[sampling.arrays["sample_logprob_rows"]].tolist()
    return list(zip(rows, sampling.num_logprobs, strict=True))
