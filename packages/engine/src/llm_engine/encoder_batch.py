"""Owns greedy decoding of batches by models with an encoder, over the pages of the KV groups.

Knows nothing of texts, sounds or the engine core: inputs are tensors, outputs token ids. Sequences join the
batch as room comes free. Each takes the pages of its longest output when it joins, so none is ever preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from llm_kernels.ops import AttentionMetadata
from llm_kvcache import KVCache
from llm_models import EncoderDecoder
from torch import Tensor

from llm_engine.worker.cache_layout import LayoutOptions, choose_layout
from llm_engine.worker.errors import InvalidOption
from llm_engine.worker.kv_pool import allocate_pool

_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderJob:
    """One input and how its output goes.

    Attributes:
        input: Ids of a text [tokens], or a spectrogram [mel bins, frames]; on the model's device.
        prompt: Tokens that the decoder starts from, at least one.
        max_tokens: Most tokens to generate, at least one.
        allowed: Token ids out of which all are chosen; None: every one.
    """

    input: Tensor
    prompt: tuple[int, ...]
    max_tokens: int
    allowed: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """Which tokens end an output, and which never come.

    Attributes:
        ends: Ids after which an output is over; they are not part of it.
        never: Ids that are never chosen.
        not_first: Ids that are not chosen as the first token.
    """

    ends: frozenset[int]
    never: tuple[int, ...] = ()
    not_first: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Sequence:
    """A job in the batch."""

    job: EncoderJob
    number: int
    kv: int
    num_states: int
    tables: list[Tensor]
    computed: int = 0
    made: list[int] = field(default_factory=list)

    @property
    def pending(self) -> list[int]:
        """The tokens of the next step."""
        return self.made[-1:] if self.made else list(self.job.prompt)


class EncoderBatch:
    """Runs jobs of one model, as many at a time as there are rows and pages.

    Args:
        model: The encoder and decoder.
        max_rows: Most sequences at a time.
        max_tokens: Longest sequence of the decoder, prompt included.
        max_states: States of the longest input.
        num_pages: Pages of the KV pool; None: what `max_rows` of the longest sequences take.

    Raises:
        InvalidOption: A number is below 1, or the pages do not hold one longest sequence.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        *,
        max_rows: int,
        max_tokens: int,
        max_states: int,
        num_pages: int | None = None,
    ) -> None:
        for name, value in (("max_rows", max_rows), ("max_tokens", max_tokens), ("max_states", max_states)):
            if value < 1:
                raise InvalidOption(name, f"must be at least 1, got {value}")
        self._model, self._max_rows = model, max_rows
        self._max_tokens, self._max_states = max_tokens, max_states
        options = LayoutOptions(
            dtype=model.dtype, block_size=_BLOCK_SIZE, max_tokens=max_tokens, prefix_caching=False
        )
        layout = choose_layout(model.caches, options)
        self._groups = layout.groups
        one = sum(
            -(-(max_tokens if group.follows_tokens else max_states) // group.block_size)
            for group in layout.groups
        )
        num_pages = max_rows * one if num_pages is None else num_pages
        if num_pages < one:
            raise InvalidOption("num_pages", f"one longest sequence takes {one} pages, got {num_pages}")
        self._kv = KVCache(
            [group.for_cache() for group in layout.groups], num_pages, enable_prefix_caching=False
        )
        self._caches = allocate_pool(model.caches, layout, num_pages, model.dtype, model.device).caches
        self._cache_groups = layout.cache_groups()

    @property
    def num_free_pages(self) -> int:
        """Pages that no sequence holds."""
        return int(self._kv.stats().free)

    @torch.inference_mode()
    def run(self, jobs: Sequence[EncoderJob], rules: StopRules) -> list[list[int]]:
        """The output of each job: the likeliest tokens, one after the other.

        Raises:
            ValueError: A job is longer than what the batch was made for, or its input cannot be encoded;
                nothing has run then.
        """
        for job in jobs:
            self._check(job)
        never = torch.tensor(rules.never, dtype=torch.int64, device=self._model.device)
        waiting = deque(enumerate(jobs))
        outputs: list[list[int]] = [[] for _ in jobs]
        running: list[_Sequence] = []
        try:
            while waiting or running:
                self._admit(waiting, running)
                running.sort(key=lambda row: len(row.pending) > 1)  # Decode rows lead.
                for sequence, token in zip(running, self._step(running, rules, never), strict=True):
                    sequence.made.append(token)
                for sequence in [one for one in running if self._is_over(one, rules)]:
                    running.remove(sequence)
                    self._kv.release(sequence.kv)
                    ended = sequence.made[-1] in rules.ends
                    outputs[sequence.number] = sequence.made[:-1] if ended else sequence.made
        finally:
            for sequence in running:
                self._kv.release(sequence.kv)
        return outputs

    def _check(self, job: EncoderJob) -> None:
        if not job.prompt or job.max_tokens < 1:
            raise ValueError("a job needs a prompt of one token and room for one more")
        if len(job.prompt) + job.max_tokens > self._max_tokens:
            raise ValueError(f"prompt and output of a job exceed {self._max_tokens} tokens")
        states = self._model.num_states(job.input)
        if not 0 < states <= self._max_states:
            raise ValueError(f"an input of {states} states; it must be 1 to {self._max_states}")

    def _admit(self, waiting: deque[tuple[int, EncoderJob]], running: list[_Sequence]) -> None:
        """Takes jobs for which there is room, runs the encoder over them and fills their cross caches."""
        admitted: list[_Sequence] = []
        while waiting and len(running) < self._max_rows:
            number, job = waiting[0]
            num_states = self._model.num_states(job.input)
            kv = self._kv.open(np.array(job.prompt, np.int32), encoder_tokens=num_states)
            # The last token is never fed back, so it needs no room.
            if not self._kv.grow(kv, len(job.prompt) + job.max_tokens - 1):
                self._kv.release(kv)
                break
            waiting.popleft()
            tables = [
                torch.from_numpy(self._kv.block_table(kv, group=index).copy())
                for index in range(len(self._groups))
            ]
            admitted.append(_Sequence(job, number, kv, num_states, tables))
            running.append(admitted[-1])
        if admitted:
            states = self._model.encode([sequence.job.input for sequence in admitted])
            slots = [
                self._slots(admitted, self._cache_groups[cache], [(0, one.num_states) for one in admitted])
                for cache in self._model.cross_caches
            ]
            self._model.write_cross(torch.cat(states), slots, self._caches)

    def _step(self, rows: list[_Sequence], rules: StopRules, never: Tensor) -> list[int]:
        """The next token of each row."""
        device = self._model.device
        lengths = [len(row.pending) for row in rows]
        ids = torch.tensor([token for row in rows for token in row.pending], device=device)
        spans = [(row.computed, row.computed + length) for row, length in zip(rows, lengths, strict=True)]
        metadata = self._metadata(rows, lengths, spans)
        hidden_TE = self._model.forward(ids, [metadata[group] for group in self._cache_groups], self._caches)
        last = torch.tensor(lengths, device=device).cumsum(0) - 1
        scores_RV = self._model.logits(hidden_TE[last])
        for row, (_, end), scores_V in zip(rows, spans, scores_RV, strict=True):
            row.computed = end
            _mask(scores_V, row, rules)
        scores_RV[:, never] = float("-inf")
        tokens: list[int] = scores_RV.argmax(dim=-1).tolist()
        return tokens

    def _metadata(
        self, rows: list[_Sequence], lengths: list[int], spans: list[tuple[int, int]]
    ) -> list[AttentionMetadata]:
        """One a group; caches of a group share theirs."""
        device = self._model.device
        positions = torch.cat([torch.arange(*span) for span in spans]).to(device)
        ends = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
        found = []
        for index, group in enumerate(self._groups):
            contexts = [end for _, end in spans]
            if not group.follows_tokens:
                contexts = [row.num_states for row in rows]
            tables = [row.tables[index] for row in rows]
            found.append(
                AttentionMetadata(
                    cu_query_lens=ends,
                    context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
                    block_tables=torch.nn.utils.rnn.pad_sequence(tables, batch_first=True).to(device),
                    slot_mapping=self._slots(rows, index, spans),
                    positions=positions,
                    num_decodes=sum(length == 1 for length in lengths),
                    max_query_len=max(lengths),
                    max_context_len=max(contexts),
                    block_size=group.block_size,
                )
            )
        return found

    def _slots(self, rows: list[_Sequence], group: int, spans: list[tuple[int, int]]) -> Tensor:
        """int64, the places of each row's tokens of its span in a group; spans lie within the tables."""
        size = self._groups[group].block_size
        slots = []
        for row, span in zip(rows, spans, strict=True):
            positions = torch.arange(*span)
            # A group of the encoder's states has no place for the decoder's tokens: it is not written to.
            blocks = row.tables[group][(positions // size).clamp(max=len(row.tables[group]) - 1)].long()
            slots.append(blocks * size + positions % size)
        return torch.cat(slots).to(self._model.device)

    @staticmethod
    def _is_over(sequence: _Sequence, rules: StopRules) -> bool:
        return sequence.made[-1] in rules.ends or len(sequence.made) == sequence.job.max_tokens


def _mask(scores_V: Tensor, row: _Sequence, rules: StopRules) -> None:
    """Takes away the tokens that may not come in this row, in place."""
    if row.job.allowed is not None:
        kept = scores_V[list(row.job.allowed)].clone()
        scores_V.fill_(float("-inf"))
        scores_V[list(row.job.allowed)] = kept
    if not row.made:
        scores_V[list(rules.not_first)] = float("-inf")
