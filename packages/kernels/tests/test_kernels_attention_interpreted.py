"""The features of the Triton attention kernels in Triton's interpreter, against the references.

As in test_kernels_interpreted the tests run in a process of their own, which `test_in_the_interpreter`
starts.
"""

from __future__ import annotations

import os

import pytest
import torch
from llm_kernels import ops

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process test_in_the_interpreter starts")
MIXED = [(1, 40), (1, 1), (1, 0), (5, 30), (20, 75)]
SINKS = torch.tensor([0.5, -2.0, 3.0, 40.0])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0])
BOUND = {torch.float32: 1e-5, torch.float16: 2e-3}


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter(rerun_in_the_interpreter):
    assert rerun_in_the_interpreter() >= 30


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _both(case, **options):
    """The result of the Triton kernels and that of the reference."""
    results = []
    for name in ("triton_interpreter", "torch"):
        with ops.use_backend("paged_attention", name):
            results.append(case.run(**options))
    return results


@inside
@pytest.mark.parametrize(
    "options",
    [
        {"chunk": 1},
        {"chunk": 16},
        {"chunk": 33},
        {"chunk": 1000},
        {"chunk": 32, "sliding_window": 20},
        {"sliding_window": 1},
        {"sliding_window": 60},
        {"sinks": SINKS},
        {"sinks": SINKS.half(), "sliding_window": 19},
        {"alibi_slopes": SLOPES},
        {"alibi_slopes": SLOPES, "soft_cap": 2.0, "chunk": 50},
        {"causal": False},
        {"causal": False, "sinks": SINKS, "soft_cap": 1.0},
    ],
    ids=lambda o: "-".join(f"{k}={'x' if isinstance(v, torch.Tensor) else v}" for k, v in o.items()),
)
def test_each_option(make_attention_case, relative_error, options):
    assert relative_error(*_both(make_attention_case(MIXED, head_size=16), **options)) < 1e-5


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("head_size", "value_size"), [(80, None), (96, None), (192, None), (192, 128), (16, 48), (24, 8)]
)
def test_head_sizes(make_attention_case, relative_error, dtype, head_size, value_size):
    case = make_attention_case(
        [(1, 20), (9, 20)], num_kv_heads=1, head_size=head_size, value_size=value_size, dtype=dtype
    )
    assert relative_error(*_both(case)) < BOUND[dtype]


@inside
@pytest.mark.parametrize("rows", [[(1, 700)], [(1, 600), (1, 0), (3, 520)]], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"sinks": SINKS[:2]},
        {"sinks": SINKS[:2], "sliding_window": 300},
        {"chunk": 512, "alibi_slopes": SLOPES[:2]},
    ],
    ids=["sinks", "window", "chunk"],
)
def test_split_decode_rows(make_attention_case, relative_error, rows, options):
    case = make_attention_case(rows, num_heads=2, num_kv_heads=1, head_size=16, value_size=32)
    assert relative_error(*_both(case, **options)) < 1e-5


@inside
def test_cross_attention_may_have_more_queries_than_keys(make_attention_case, relative_error):
    case = make_attention_case([(1, 3), (9, 4), (2, 50), (3, 0)], head_size=16)
    assert relative_error(*_both(case, causal=False)) < 1e-5


@inside
@pytest.mark.parametrize("limit", [{"sliding_window": 20}, {"chunk": 32}], ids=str)
def test_entries_before_the_first_key_are_not_read(make_attention_case, relative_error, limit):
    """Given back, they name a block whose bits are NaN, or a block far outside."""
    case = make_attention_case([(1, 120), (1, 30), (1, 10), (4, 117), (24, 50)], head_size=16)
    with ops.use_backend("paged_attention", "torch"):
        expected = case.run(**limit)
    for row, (num_queries, context) in enumerate(case.rows):
        position = context - num_queries
        first = max(0, position - 19) if "sliding_window" in limit else position // 32 * 32
        given_back = case.metadata.block_tables[row, : first // 16].clone().long()
        case.key_cache[given_back] = float("nan")
        case.value_cache[given_back] = float("nan")
        case.metadata.block_tables[row, : first // 16] = 1 << 30
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(**limit), expected) < 1e-5


@inside
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 6}, {"alibi_slopes": SLOPES, "soft_cap": 2.0}, {"sliding_window": 50}],
    ids=["plain", "window", "alibi", "wide"],
)
def test_packed_rows(relative_error, causal, options):
    generator = torch.Generator().manual_seed(0)
    queries, keys = [5, 1, 70, 0, 17, 3], [5, 1, 70, 0, 40, 0]
    fused = torch.randn(sum(queries) + 2, 8, 32, generator=generator)
    key, value = (
        torch.randn(sum(keys), 2, 32, generator=generator),
        torch.randn(sum(keys), 2, 16, generator=generator),
    )
    cu_queries, cu_keys = (torch.tensor([0, *n]).cumsum(0).int() for n in (queries, keys))
    results = []
    for name in ("triton_interpreter", "torch"):
        out = torch.full((fused.shape[0], 4, 16), 7.0)
        with ops.use_backend("varlen_attention", name):
            ops.varlen_attention(
                out,
                fused[:, :4],
                key,
                value,
                cu_queries,
                cu_keys,
                70,
                70,
                scale=0.2,
                causal=causal,
                **options,
            )
        results.append(out)
    assert relative_error(*results) < 1e-5


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("rows", "num_heads", "value_size", "rope_size"),
    [
        (MIXED, 4, 32, 16),
        ([(1, 600), (1, 3), (2, 40)], 3, 16, 8),
        ([(1, 9), (3, 40), (30, 30)], 20, 24, 0),
    ],
    ids=["mixed", "split", "no rope"],
)
def test_latents(make_attention_case, relative_error, dtype, rows, num_heads, value_size, rope_size):
    case = make_attention_case(
        rows, num_heads=num_heads, num_kv_heads=1, head_size=value_size + rope_size, dtype=dtype
    )
    results = []
    for name in ("triton_interpreter", "torch"):
        out = torch.full((*case.query.shape[:2], value_size), float("nan"), dtype=dtype)
        with ops.use_backend("latent_attention", name):
            ops.latent_attention(
                out, case.query, case.key_cache[:, :, 0], case.metadata, scale=0.2, value_size=value_size
            )
        results.append(out)
    assert relative_error(*results) < BOUND[dtype]


@inside
def test_write_kv_and_latents_of_other_sizes():
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(6, 3, 24, generator=generator), torch.randn(6, 3, 700, generator=generator)
    slots = torch.tensor([5, -1, 39, 0, 40, 17])  # 40 is past the end: skipped on a GPU
    key_cache, value_cache = torch.zeros(5, 2, 8, 3, 24)[:, 0], torch.zeros(5, 2, 8, 3, 700)[:, 1]
    latent_cache = torch.zeros(5, 10, 700)[:, :8]
    with ops.use_backend("write_kv", "triton_interpreter"):
        ops.write_kv(key, value, key_cache, value_cache, slots)
    with ops.use_backend("write_latent", "triton_interpreter"):
        ops.write_latent(value[:, 1], latent_cache, slots)
    for token, slot in enumerate(slots.tolist()):
        if 0 <= slot < 40:
            at = divmod(slot, 8)
            assert torch.equal(key_cache[at], key[token])
            assert torch.equal(value_cache[at], value[token])
            assert torch.equal(latent_cache[at], value[token, 1])
    assert int(latent_cache.any(dim=-1).sum()) == 4
