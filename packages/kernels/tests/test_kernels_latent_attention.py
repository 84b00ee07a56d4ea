"""Attention over latents (MLA): write and read, against attention with keys and values spelled out."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument

RANK, ROPE, HEADS, BLOCK = 32, 16, 6, 16
ROWS = [(1, 40), (1, 1), (1, 0), (6, 6), (5, 33)]


def _randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _metadata(rows, tables):
    cu = torch.tensor([0, *(q for q, _ in rows)]).cumsum(0).int()
    positions = torch.cat([torch.arange(c - q, c) for q, c in rows])
    return ops.AttentionMetadata(
        cu_query_lens=cu,
        context_lens=torch.tensor([c for _, c in rows], dtype=torch.int32),
        block_tables=tables,
        slot_mapping=positions,
        positions=positions,
        num_decodes=sum(q == 1 for q, _ in rows),
        max_query_len=max(q for q, _ in rows),
        max_context_len=max(c for _, c in rows),
    )


def _case(dtype):
    """The latents of each row, and a cache in whose blocks they lie, apart by more than their size."""
    tables = torch.randperm(20, generator=torch.Generator().manual_seed(1)).int().view(5, 4)
    pool = torch.full((20, BLOCK * (RANK + ROPE) + 40), float("nan"), dtype=dtype)
    cache = pool[:, : BLOCK * (RANK + ROPE)].unflatten(1, (BLOCK, RANK + ROPE))
    latents = [_randn(c, RANK + ROPE, seed=i, dtype=dtype) for i, (_, c) in enumerate(ROWS)]
    for table, latent in zip(tables, latents, strict=True):
        at = torch.arange(latent.shape[0])
        wide = torch.cat([latent, latent], dim=1)
        slots = table.long()[at // BLOCK] * BLOCK + at % BLOCK
        ops.write_latent(wide[:, : RANK + ROPE], cache, slots)
    return latents, cache, _metadata(ROWS, tables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_absorbed_attention_equals_attention_with_keys_and_values(relative_error, dtype):
    """Per head, keys and values are projections of the latent; queries and outputs absorb them."""
    latents, cache, metadata = _case(dtype)
    up_key, up_value = _randn(HEADS, RANK, 24, seed=8), _randn(HEADS, RANK, 20, seed=9)
    num_tokens = int(metadata.cu_query_lens[-1])
    nope, rope = _randn(num_tokens, HEADS, 24, seed=10), _randn(num_tokens, HEADS, ROPE, seed=11)
    query = torch.cat([torch.einsum("thd,hrd->thr", nope, up_key), rope], dim=-1).to(dtype)
    out = torch.full((num_tokens, HEADS, RANK), float("nan"), dtype=dtype)
    ops.latent_attention(out, query, cache, metadata, scale=0.1, value_size=RANK)
    got = torch.einsum("thr,hrd->thd", out.float(), up_value)
    expected, token = [], 0
    for (num_queries, context), latent in zip(ROWS, latents, strict=True):
        if context == 0:
            expected.append(torch.zeros(num_queries, HEADS, 20))
            token += num_queries
            continue
        compressed, rope_key = latent.float().split([RANK, ROPE], dim=-1)
        key = torch.cat(
            [torch.einsum("cr,hrd->hcd", compressed, up_key), rope_key.expand(HEADS, -1, -1)], dim=-1
        )
        value = torch.einsum("cr,hrd->hcd", compressed, up_value)
        q = torch.cat([nope, rope], dim=-1)[token : token + num_queries].transpose(0, 1)
        mask = torch.ones(num_queries, context).tril(context - num_queries).bool()
        weights = (q @ key.transpose(1, 2) * 0.1).masked_fill(~mask, float("-inf")).softmax(dim=-1)
        expected.append((weights @ value).transpose(0, 1))
        token += num_queries
    assert relative_error(got, torch.cat(expected)) < (1e-5 if dtype == torch.float32 else 2e-2)


def test_a_slot_of_minus_one_writes_nothing_and_a_bad_one_raises():
    cache = torch.zeros(3, BLOCK, 8)
    ops.write_latent(torch.ones(2, 8), cache, torch.tensor([-1, 20]))
    assert cache.sum() == 8
    assert (cache[1, 4] == 1).all()
    with pytest.raises(InvalidArgument) as caught:
        ops.write_latent(torch.ones(2, 8), cache, torch.tensor([0, 48]))
    assert caught.value.field == "slot_mapping"
    assert cache.sum() == 8


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("latent_cache", {"cache": torch.zeros(20, BLOCK, 8)}),
        ("value_size", {"value_size": 49}),
        ("out_THR", {"out": torch.zeros(14, HEADS, RANK + 1)}),
        ("query_THL", {"query": torch.zeros(14, RANK + ROPE)}),
    ],
)
def test_what_does_not_fit_is_named(field, given):
    _, cache, metadata = _case(torch.float32)
    arguments = {
        "out": torch.zeros(14, HEADS, RANK),
        "query": torch.zeros(14, HEADS, RANK + ROPE),
        "cache": cache,
        "value_size": RANK,
    } | given
    with pytest.raises(InvalidArgument) as caught:
        ops.latent_attention(
            arguments["out"],
            arguments["query"],
            arguments["cache"],
            metadata,
            scale=1.0,
            value_size=arguments["value_size"],
        )
    assert caught.value.field == field
