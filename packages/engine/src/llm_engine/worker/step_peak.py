"""Measures the most memory that a step takes beyond weights and caches, by running the largest ones.

Run are, each alone: a step full of prompt tokens over all rows, a decode step of all rows, the draw for all
rows with every option that costs memory (penalties, a nucleus, logprobs), and decode steps whose rows share a
prefix. All kernels of such steps are compiled or loaded by it, so that no request waits for that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from llm_kernels.ops import AttentionMetadata, Penalties, SamplingBatch, SharedPrefix, sample, token_ranks
from llm_models.model import Model
from torch import Tensor

from llm_engine.worker.kv_groups import KVLayout
from llm_engine.worker.kv_pool import Caches, allocate_pool
from llm_engine.worker.shared_prefix import MAX_GROUPS

# Kernels have other tiles for few rows.
_FEW_ROWS = 32
# As many likely tokens as OpenAI's interface lets a caller ask for.
_NUM_LOGPROBS = 20


class LargestSteps:
    """The largest steps of a model under an engine's limits, over one page of KV cache.

    Args:
        model: Loaded.
        layout: Its KV groups.
        max_num_seqs: Most rows of a step.
        max_num_batched_tokens: Most tokens of a step.
        max_model_len: Longest context in tokens.
    """

    def __init__(
        self,
        model: Model,
        layout: KVLayout,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
    ) -> None:
        self._model, self._layout = model, layout
        self._num_rows = min(max_num_seqs, max_num_batched_tokens)
        self._num_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len

    @torch.inference_mode()
    def run_prompts(self, caches: Caches) -> Tensor:
        """A full budget of prompt tokens over all rows; returns the rows' hidden states."""
        base, longer = divmod(self._num_tokens, self._num_rows)
        lengths = [base + (row < longer) for row in range(self._num_rows)]
        return self._forward(lengths, 0, max(lengths), caches)[: self._num_rows]

    @torch.inference_mode()
    def run_decodes(self, caches: Caches) -> Tensor:
        """A token of every row, in contexts that are short but might be the longest."""
        return self._forward([1] * self._num_rows, self._num_rows, self._max_model_len, caches)

    @torch.inference_mode()
    def run_shared_decodes(self, caches: Caches, num_rows: int | None = None) -> Tensor | None:
        """A token of some rows (None: of all), whose contexts begin with the same block.

        Returns:
            Their hidden states; None where no KV group keeps whole contexts or they have no two blocks.
        """
        whole = [group.block_size for group in self._layout.groups if group.kind == "full"]
        if not whole or self._max_model_len <= whole[0]:
            return None
        rows = min(num_rows or self._num_rows, self._num_rows)
        return self._forward([1] * rows, rows, self._max_model_len, caches, shared_tokens=whole[0])

    @torch.inference_mode()
    def run_draw(self, hidden_RE: Tensor) -> None:
        """Scores and tokens of all rows, with all options."""
        logits_RV = self._model.raw_logits(hidden_RE).float()
        batch = _every_option(len(logits_RV), logits_RV.shape[1], self._model.device)
        tokens_R = sample(logits_RV, batch).tokens
        token_ranks(logits_RV, tokens_R, min(_NUM_LOGPROBS, logits_RV.shape[1]))

    def _forward(
        self,
        lengths: list[int],
        num_decodes: int,
        max_context_len: int,
        caches: Caches,
        *,
        shared_tokens: int = 0,
    ) -> Tensor:
        """Runs rows of so many tokens; their KV goes nowhere, and they read the one page.

        Recurrent states are written to it by all rows: what it holds does not matter.
        """
        device, total = self._model.device, sum(lengths)
        lengths_R = torch.tensor(lengths, dtype=torch.int32, device=device)
        shared = _one_group(num_decodes, shared_tokens, device) if shared_tokens else None
        by_group = [
            AttentionMetadata(
                cu_query_lens=torch.cat([lengths_R.new_zeros(1), lengths_R.cumsum(0)]).to(torch.int32),
                context_lens=lengths_R + shared_tokens,
                block_tables=torch.zeros(
                    (len(lengths), -(-max_context_len // group.block_size)), dtype=torch.int32, device=device
                ),
                slot_mapping=torch.full((total,), -1, dtype=torch.int64, device=device),
                positions=torch.zeros(total, dtype=torch.int64, device=device),
                num_decodes=num_decodes,
                max_query_len=max(lengths),
                max_context_len=max_context_len,
                block_size=group.block_size,
                shared_prefix=shared if group.kind == "full" else None,
            )
            for group in self._layout.groups
        ]
        metadata = [by_group[group] for group in self._layout.cache_groups()]
        return self._model.forward(torch.zeros(total, dtype=torch.int64, device=device), metadata, caches)


def measure_step_bytes(
    steps: LargestSteps, model: Model, layout: KVLayout, *, shares_prefixes: bool = True
) -> int:
    """The most bytes of the allocator that a step takes beyond the weights.

    Args:
        steps: What to run.
        model: On a CUDA device.
        layout: The model's KV groups.
        shares_prefixes: Whether attention may read a prefix once for many rows.
    """
    device = model.device
    caches = allocate_pool(model.caches, layout, 1, model.dtype, device).caches
    hidden: list[Tensor] = []
    runs: list[Callable[[], object]] = [
        lambda: hidden.append(steps.run_prompts(caches)),
        lambda: steps.run_decodes(caches),
        lambda: steps.run_draw(hidden.pop()),
    ]
    if shares_prefixes:
        runs += [
            lambda: steps.run_shared_decodes(caches),
            lambda: steps.run_shared_decodes(caches, _FEW_ROWS),
        ]
    return max(_peak(run, device) for run in runs)


def _peak(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes allocated while something runs, beyond what was before."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _one_group(num_rows: int, num_tokens: int, device: torch.device) -> SharedPrefix:
    """All rows in one group, which shares so many tokens."""
    cu_members = torch.full((MAX_GROUPS + 1,), num_rows, dtype=torch.int32, device=device)
    cu_members[0] = 0
    group_lens = torch.zeros(MAX_GROUPS, dtype=torch.int32, device=device)
    group_lens[0] = num_tokens
    return SharedPrefix(
        prefix_lens=torch.full((num_rows,), num_tokens, dtype=torch.int32, device=device),
        member_rows=torch.arange(num_rows, dtype=torch.int32, device=device),
        cu_members=cu_members,
        group_lens=group_lens,
    )


def _every_option(num_rows: int, vocab_size: int, device: torch.device) -> SamplingBatch:
    whole = torch.arange(num_rows, device=device)
    ones = torch.ones(num_rows, device=device)
    shape = (num_rows, vocab_size)
    return SamplingBatch(
        temperature=ones,
        top_p=0.9 * ones,
        min_p=0.0 * ones,
        top_k=torch.zeros(num_rows, dtype=torch.int32, device=device),
        seeds=whole,
        positions=whole,
        any_top_p=True,
        filtered_rows=whole,
        penalties=Penalties(
            presence=ones,
            frequency=ones,
            repetition=ones,
            output_counts=torch.zeros(shape, dtype=torch.int32, device=device),
            prompt_mask=torch.zeros(shape, dtype=torch.bool, device=device),
            rows=whole,
        ),
    )
