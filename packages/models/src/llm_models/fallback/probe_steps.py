"""Owns a few made-up steps that try a model out; knows nothing about transformers."""

from collections.abc import Mapping, Sequence

import torch
from llm_kernels.ops import AttentionMetadata
from torch import Tensor

from llm_models.model import Model

BLOCK_SIZE = 4
STEPS: tuple[Mapping[int, int], ...] = ({0: 6, 1: 5}, {1: 1, 0: 4}, {1: 1, 0: 1})
"""New tokens of each row in each step: a prompt in chunks beside a shorter row, then both decode."""
_TABLES: Mapping[int, tuple[int, ...]] = {0: (6, 1, 4), 1: (3, 7, 0)}
LENGTHS = {row: sum(step.get(row, 0) for step in STEPS) for row in STEPS[0]}


def run_steps(model: Model, ids: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Runs `STEPS` over rows of ids, int64 [LENGTHS[row]]; returns the logits of each row's tokens."""
    caches = model.allocate_caches(num_blocks=8, block_size=BLOCK_SIZE)
    done = dict.fromkeys(ids, 0)
    logits: dict[int, list[Tensor]] = {row: [] for row in ids}
    for step in STEPS:
        rows = list(step)
        tokens = torch.cat([ids[row][done[row] : done[row] + count] for row, count in step.items()])
        metadata = _metadata(step, done, tokens.device)
        hidden = model.forward(tokens, [metadata] * len(model.caches), caches)
        parts = torch.split(model.logits(hidden), [step[row] for row in rows])
        for row, part in zip(rows, parts, strict=True):
            logits[row].append(part)
            done[row] += step[row]
    return {row: torch.cat(parts) for row, parts in logits.items()}


def _metadata(step: Mapping[int, int], done: Mapping[int, int], device: torch.device) -> AttentionMetadata:
    contexts = [done[row] + count for row, count in step.items()]
    positions = [p for row, count in step.items() for p in range(done[row], done[row] + count)]
    owners = [row for row, count in step.items() for _ in range(count)]
    slots = [
        _TABLES[row][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
        for row, p in zip(owners, positions, strict=True)
    ]

    def tensor(values: Sequence[object], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return AttentionMetadata(
        cu_query_lens=tensor([0, *torch.tensor(list(step.values())).cumsum(0).tolist()], torch.int32),
        context_lens=tensor(contexts, torch.int32),
        block_tables=tensor([_TABLES[row] for row in step], torch.int32),
        slot_mapping=tensor(slots, torch.int64),
        positions=tensor(positions, torch.int64),
        num_decodes=sum(count == 1 for count in step.values()),
        max_query_len=max(step.values()),
        max_context_len=max(contexts),
    )
