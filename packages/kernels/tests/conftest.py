"""Random problems for the kernel tests, the error measure, and the way into Triton's interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from llm_kernels import ops
from llm_kernels.reference.attention_scores import Scoring, attend


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """One problem: the dense float32 keys and values of each row beside the paged tensors that hold them."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    metadata: ops.AttentionMetadata
    rows: list[tuple[int, int]]
    scale: float

    def run(self, **options: object) -> torch.Tensor:
        """`options`: those of `ops.paged_attention`."""
        shape = (*self.query.shape[:2], self.value_cache.shape[-1])
        out = torch.full(shape, float("nan"), dtype=self.query.dtype, device=self.query.device)
        ops.paged_attention(
            out, self.query, self.key_cache, self.value_cache, self.metadata, scale=self.scale, **options
        )
        return out

    def expected(self, **options: object) -> torch.Tensor:
        """By gathering each row's tokens one by one: float32."""
        outs, start = [], 0
        block_size = self.key_cache.shape[1]
        for row, (num_queries, context) in enumerate(self.rows):
            query = self.query[start : start + num_queries]
            start += num_queries
            if context == 0:
                shape = (*query.shape[:2], self.value_cache.shape[-1])
                outs.append(torch.zeros(shape, device=query.device))
                continue
            at = torch.arange(context, device=query.device)
            blocks = self.metadata.block_tables[row].long()[at // block_size]
            key, value = (cache[blocks, at % block_size] for cache in (self.key_cache, self.value_cache))
            positions = torch.arange(context - num_queries, context, device=query.device)
            scoring = Scoring(scale=self.scale, **options)
            outs.append(attend(query[None], key[None], value[None], positions[None], at[None], scoring)[0])
        return torch.cat(outs)


def _make_attention_case(
    rows: list[tuple[int, int]],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_size: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    device: str = "cpu",
    seed: int = 0,
    value_size: int | None = None,
) -> AttentionCase:
    """`rows`: (query tokens, context) with decode rows first."""
    generator = torch.Generator(device=device).manual_seed(seed)
    needed = [-(-context // block_size) for _, context in rows]
    num_blocks = sum(needed) + 3
    order = torch.randperm(num_blocks, generator=generator, device=device).int()
    tables = torch.full((len(rows), max(needed, default=0) + 1), -7, dtype=torch.int32, device=device)
    taken = 0
    for row, count in enumerate(needed):
        tables[row, :count] = order[taken : taken + count]
        taken += count
    # A cache whose keys and values share one tensor, as engines lay it out: the strides are not contiguous.
    shape = (num_blocks, block_size * num_kv_heads, head_size + (value_size or head_size))
    cache = torch.randn(shape, generator=generator, device=device).to(cache_dtype or dtype)
    split = block_size * num_kv_heads * head_size
    key_cache, value_cache = (
        part.unflatten(1, (block_size, num_kv_heads, -1))
        for part in cache.flatten(1).split([split, cache[0].numel() - split], dim=1)
    )
    num_tokens = sum(q for q, _ in rows)
    # The query is one part of a fused projection.
    fused = torch.randn(num_tokens, (num_heads + 2) * head_size, generator=generator, device=device).to(dtype)
    cu = torch.tensor([0, *(q for q, _ in rows)], device=device).cumsum(0).int()
    empty = torch.empty(0, dtype=torch.int64, device=device)
    return AttentionCase(
        query=fused[:, : num_heads * head_size].view(num_tokens, num_heads, head_size),
        key_cache=key_cache,
        value_cache=value_cache,
        metadata=ops.AttentionMetadata(
            cu_query_lens=cu,
            context_lens=torch.tensor([c for _, c in rows], dtype=torch.int32, device=device),
            block_tables=tables,
            slot_mapping=empty,
            positions=empty,
            num_decodes=next((i for i, (q, _) in enumerate(rows) if q != 1), len(rows)),
            max_query_len=max((q for q, _ in rows), default=0),
            max_context_len=max((c for _, c in rows), default=0),
        ),
        rows=rows,
        scale=head_size**-0.5,
    )


def _share_prefixes(case: AttentionCase, groups: list[tuple[list[int], int]], *, capacity: int = 4) -> None:
    """Makes decode rows share their first tokens: for each group its rows and tokens, whole blocks."""
    metadata, block_size = case.metadata, case.key_cache.shape[1]
    device = case.query.device
    prefix_lens = torch.zeros(metadata.num_decodes, dtype=torch.int32)
    members: list[int] = []
    sizes, lengths = [0] * capacity, [0] * capacity
    for index, (rows, length) in enumerate(groups):
        first, *others = rows
        shared = metadata.block_tables[first, : length // block_size]
        for row in others:
            metadata.block_tables[row, : length // block_size] = shared
        prefix_lens[rows] = length
        members += rows
        sizes[index], lengths[index] = len(rows), length
    members += [1 << 30] * (metadata.num_decodes - len(members))
    metadata.shared_prefix = ops.SharedPrefix(
        prefix_lens=prefix_lens.to(device),
        member_rows=torch.tensor(members, dtype=torch.int32, device=device),
        cu_members=torch.tensor([0, *sizes], device=device).cumsum(0).int(),
        group_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
    )


def _relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """||out - expected|| / ||expected||; NaN anywhere gives NaN, which passes no bound."""
    difference = (out.float() - expected.float()).norm()
    return float(difference / expected.float().norm().clamp_min(1e-30))


@pytest.fixture
def make_attention_case() -> Callable[..., AttentionCase]:
    return _make_attention_case


@pytest.fixture
def relative_error() -> Callable[[torch.Tensor, torch.Tensor], float]:
    return _relative_error


@pytest.fixture
def share_prefixes() -> Callable[..., None]:
    return _share_prefixes


@pytest.fixture
def rerun_in_the_interpreter(request: pytest.FixtureRequest) -> Callable[[], int]:
    """Runs the test's file again where Triton interprets its kernels, which must be chosen before its import.

    Returns:
        A function that returns how many tests passed there; none may fail.
    """
    pytest.importorskip("triton")

    def rerun() -> int:
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(request.path)],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
        passed = re.search(r"(\d+) passed", result.stdout)
        assert passed is not None
        return int(passed.group(1))

    return rerun


@pytest.fixture(autouse=True)
def returned_device_memory():
    """Many processes of tests share a device: what a large one took goes back."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 2**30:
        torch.cuda.empty_cache()
