"""Measures the most memory that a step takes beyond weights and caches, by running the largest ones.

Three things are run, each alone: a step full of prompt tokens over all rows, a decode step of all rows, and
the draw for all rows with every option that costs memory (penalties, a nucleus, logprobs).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from llm_kernels.ops import AttentionMetadata, Penalties, SamplingBatch, sample, token_ranks
from llm_models.model import Model
from torch import Tensor

from llm_engine.worker.kv_groups import KVLayout
from llm_engine.worker.kv_pool import Caches, allocate_pool

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
    def run_draw(self, hidden_RE: Tensor) -> None:
        """Scores and tokens of all rows, with all options."""
        logits_RV = self._model.raw_logits(hidden_RE).float()
        batch = _every_option(len(logits_RV), logits_RV.shape[1], self._model.device)
        tokens_R = sample(logits_RV, batch).tokens
        token_ranks(logits_RV, tokens_R, min(_NUM_LOGPROBS, logits_RV.shape[1]))

    def _forward(self, lengths: list[int], num_decodes: int, max_context_len: int, caches: Caches) -> Tensor:
        """Runs rows of so many tokens; their KV goes nowhere, and they read the one page.

        Recurrent states are written to it by all rows: what it holds does not matter.
        """
        device, total = self._model.device, sum(lengths)
        lengths_R = torch.tensor(lengths, dtype=torch.int32, device=device)
        by_group = [
            AttentionMetadata(
                cu_query_lens=torch.cat([lengths_R.new_zeros(1), lengths_R.cumsum(0)]).to(torch.int32),
                context_lens=lengths_R,
                block_tables=torch.zeros(
                    (len(lengths), -(-max_context_len // group.block_size)), dtype=torch.int32, device=device
                ),
                slot_mapping=torch.full((total,), -1, dtype=torch.int64, device=device),
                positions=torch.zeros(total, dtype=torch.int64, device=device),
                num_decodes=num_decodes,
                max_query_len=max(lengths),
                max_context_len=max_context_len,
                block_size=group.block_size,
            )
            for group in self._layout.groups
        ]
        metadata = [by_group[group] for group in self._layout.cache_groups()]
        return self._model.forward(torch.zeros(total, dtype=torch.int64, device=device), metadata, caches)


def measure_step_bytes(steps: LargestSteps, model: Model, layout: KVLayout) -> int:
    """The most bytes of the allocator that a step takes beyond the weights.

    Args:
        steps: What to run.
        model: On a CUDA device.
        layout: The model's KV groups.
    """
    device = model.device
    caches = allocate_pool(model.caches, layout, 1, model.dtype, device).caches
    hidden: list[Tensor] = []
    return max(
        _peak(lambda: hidden.append(steps.run_prompts(caches)), device),
        _peak(lambda: steps.run_decodes(caches), device),
        _peak(lambda: steps.run_draw(hidden.pop()), device),
    )


def _peak(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes allocated while something runs, beyond what was before."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


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
