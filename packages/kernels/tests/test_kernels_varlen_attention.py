"""Attention over packed rows, against a dense softmax a row with its mask spelled out."""

from __future__ import annotations

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import BackendUnavailable, InvalidArgument
from llm_kernels.reference import varlen_attention as reference

LENGTHS = [(5, 5), (1, 1), (40, 40), (0, 0), (17, 17)]
CROSS = [(5, 9), (3, 0), (12, 7), (1, 30)]
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0])


def _randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


BIAS = _randn(4, 64, 64, seed=7)


def _bias_of(num_queries, num_keys):
    return BIAS[:, :num_queries, :num_keys]


def _cu(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def _run(lengths, *, dtype=torch.float32, value_size=32, **options):
    """The op's result and the expected one."""
    num_queries, num_keys = (sum(n[i] for n in lengths) for i in (0, 1))
    fused = _randn(num_queries, 8, 32, dtype=dtype)
    query, key = fused[:, :4], _randn(num_keys, 2, 32, seed=1, dtype=dtype)
    value = _randn(num_keys, 2, value_size, seed=2, dtype=dtype)
    out = torch.full((num_queries, 4, value_size), float("nan"), dtype=dtype)
    ops.varlen_attention(
        out,
        query,
        key,
        value,
        _cu([q for q, _ in lengths]),
        _cu([k for _, k in lengths]),
        max(q for q, _ in lengths),
        max(k for _, k in lengths),
        scale=0.2,
        **options,
    )
    expected, at_query, at_key = [], 0, 0
    for q, k in lengths:
        row = query[at_query : at_query + q], key[at_key : at_key + k], value[at_key : at_key + k]
        expected.append(_dense(*row, options))
        at_query, at_key = at_query + q, at_key + k
    return out, torch.cat(expected)


def _dense(query, key, value, options):
    num_queries, num_keys = query.shape[0], key.shape[0]
    key, value = (x.double().repeat_interleave(2, dim=1).transpose(0, 1) for x in (key, value))
    scores = query.double().transpose(0, 1) @ key.transpose(1, 2) * 0.2
    cap, slopes, window = (options.get(n) for n in ("soft_cap", "alibi_slopes", "sliding_window"))
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    distance = torch.arange(num_keys) - torch.arange(num_keys - num_queries, num_keys)[:, None]
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * distance.abs()
    if options.get("bias") is not None:
        scores = scores + BIAS[:, :num_queries, :num_keys]
    hidden = distance > 0 if options["causal"] else torch.zeros_like(distance).bool()
    if window is not None:
        hidden = hidden | (distance.abs() >= window)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1).nan_to_num(0.0)
    return (weights @ value).transpose(0, 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sliding_window": 1},
        {"sliding_window": 6},
        {"soft_cap": 0.5},
        {"alibi_slopes": SLOPES},
        {"bias": BIAS},
        {"bias": _bias_of},
        {"bias": BIAS, "sliding_window": 9, "alibi_slopes": SLOPES},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, CROSS], ids=["self", "cross"])
@pytest.mark.parametrize("backend", ["torch", "sdpa"])
def test_each_option(relative_error, backend, lengths, causal, options):
    if backend == "sdpa" and "soft_cap" in options:
        with ops.use_backend("varlen_attention", "sdpa"), pytest.raises(BackendUnavailable, match="soft_cap"):
            _run(lengths, causal=causal, **options)
        return
    with ops.use_backend("varlen_attention", backend):
        out, expected = _run(lengths, causal=causal, **options)
    assert relative_error(out, expected) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [None, BIAS], ids=["plain", "bias"])
def test_half_types_and_values_of_another_size(relative_error, dtype, bias):
    assert ops.selected("varlen_attention", "cpu", dtype) == "sdpa"
    out, expected = _run(LENGTHS, causal=False, dtype=dtype, value_size=48, bias=bias)
    assert out.dtype == dtype
    assert relative_error(out, expected) < 1e-2


def test_the_reference_takes_long_rows_in_blocks(relative_error, monkeypatch):
    monkeypatch.setattr(reference, "_MAX_ELEMENTS", 500)
    with ops.use_backend("varlen_attention", "torch"):
        out, expected = _run(LENGTHS, causal=True, bias=BIAS, sliding_window=30)
    assert relative_error(out, expected) < 1e-5


def test_tokens_past_the_rows_stay():
    query = torch.ones(4, 2, 16)
    out = torch.full_like(query, 7.0)
    cu = torch.tensor([0, 3], dtype=torch.int32)
    ops.varlen_attention(out, query, query, query, cu, cu, 3, 3, scale=1.0, causal=False)
    assert (out[3] == 7).all()
    assert torch.allclose(out[:3], torch.ones(3, 2, 16))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("cu_query_lens", {"cu_query_lens": torch.tensor([0, 5], dtype=torch.int32)}),
        ("cu_query_lens", {"cu_query_lens": torch.tensor([0, 4])}),
        ("cu_key_lens", {"cu_key_lens": torch.tensor([1, 4], dtype=torch.int32)}),
        ("key_SKD", {"key": torch.zeros(4, 2, 8)}),
        ("value_SKV", {"value": torch.zeros(4, 16)}),
        ("bias", {"bias": torch.zeros(2, 3, 4)}),
        ("sliding_window", {"sliding_window": 0}),
    ],
)
def test_what_does_not_fit_is_named(field, change):
    x, cu = torch.zeros(4, 2, 16), torch.tensor([0, 4], dtype=torch.int32)
    given = {"key": x, "value": x, "cu_query_lens": cu, "cu_key_lens": cu, "bias": None} | change
    with pytest.raises(InvalidArgument) as caught:
        ops.varlen_attention(
            torch.zeros_like(x),
            x,
            given["key"],
            given["value"],
            given["cu_query_lens"],
            given["cu_key_lens"],
            4,
            4,
            scale=1.0,
            causal=False,
            bias=given["bias"],
            sliding_window=given.get("sliding_window"),
        )
    assert caught.value.field == field
