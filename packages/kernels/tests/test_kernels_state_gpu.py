"""The recurrent ops on a CUDA device, compiled, against the reference: outputs, states, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from llm_kernels import ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPS = ("causal_conv1d", "selective_scan", "ssd_scan", "gated_delta_rule", "linear_attention", "rg_lru")
# TF32 products stand for the half types'.
BOUND = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 3e-3}
PROMPTS = [(1, 1), (1, 300), (1, 257), (1, 0), (70, 70), (17, 1000), (600, 700), (5, 5), (33, 0)]
DECODES = [(1, 1 + 37 * i) for i in range(60)] + [(1, 0)] * 4


@dataclass(frozen=True, slots=True)
class Problem:
    """Inputs of an op; `call(out, *packed, cache, metadata, block_size)`."""

    state: tuple[int, ...]
    out: tuple[int, ...]
    packed: list[torch.Tensor]
    call: Callable[..., None]


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def _conv(tokens: int, dtype: torch.dtype) -> Problem:
    weight, bias = _normal(1000, 4, dtype=dtype), _normal(1000, dtype=dtype)

    def call(out, x, cache, metadata, block_size):
        ops.causal_conv1d(out, x, weight, bias, cache, metadata, block_size=block_size, activation="silu")

    return Problem((1000, 3), (1000,), [_normal(tokens, 2000, dtype=dtype)[:, :1000]], call)


def _selective(tokens: int, dtype: torch.dtype, *, groups: int = 1) -> Problem:
    A, D, bias = -_normal(1000, 16).exp(), _normal(1000), _normal(1000) - 3

    def call(out, x, dt, B, C, cache, metadata, block_size):
        ops.selective_scan(out, x, dt, A, B, C, D, cache, metadata, block_size=block_size, dt_bias=bias)

    packed = [_normal(tokens, 1000, dtype=dtype) for _ in range(2)]
    packed += [_normal(tokens, groups, 16, dtype=dtype) for _ in range(2)]
    return Problem((1000, 16), (1000,), packed, call)


def _ssd(tokens: int, dtype: torch.dtype, *, states: int = 128) -> Problem:
    A, D, bias = -_normal(24).exp(), _normal(24), _normal(24) - 3

    def call(out, x, dt, B, C, cache, metadata, block_size):
        ops.ssd_scan(out, x, dt, A, B, C, D, cache, metadata, block_size=block_size, dt_bias=bias)

    packed = [_normal(tokens, 24, 64, dtype=dtype), _normal(tokens, 24, dtype=dtype)]
    packed += [_normal(tokens, 2, states, dtype=dtype) for _ in range(2)]
    return Problem((24, 64, states), (24, 64), packed, call)


def _delta(tokens: int, dtype: torch.dtype, *, keywise: bool = False) -> Problem:
    def call(out, q, k, v, g, beta, cache, metadata, block_size):
        ops.gated_delta_rule(out, q, k, v, g, beta, cache, metadata, block_size=block_size, scale=128**-0.5)

    decay = _normal(tokens, 8, 128) if keywise else _normal(tokens, 8)
    packed = [
        *(_normal(tokens, 4, 128, dtype=dtype) for _ in range(2)),
        _normal(tokens, 8, 128, dtype=dtype),
        -(2 * decay - 2).exp(),
        torch.sigmoid(_normal(tokens, 8, dtype=dtype)),
    ]
    return Problem((8, 128, 128), (8, 128), packed, call)


def _linear(tokens: int, dtype: torch.dtype) -> Problem:
    slope = torch.logspace(-3, 0, 8, device="cuda")

    def call(out, q, k, v, cache, metadata, block_size):
        ops.linear_attention(out, q, k, v, slope, cache, metadata, block_size=block_size)

    packed = [_normal(tokens, 8, 96, dtype=dtype) for _ in range(3)]
    return Problem((8, 96, 96), (8, 96), packed, call)


def _rg_lru(tokens: int, dtype: torch.dtype) -> Problem:
    a_param = _normal(1000)

    def call(out, x, i, r, cache, metadata, block_size):
        ops.rg_lru(out, x, i, r, a_param, cache, metadata, block_size=block_size)

    return Problem((1000,), (1000,), [_normal(tokens, 1000, dtype=dtype) for _ in range(3)], call)


PROBLEMS: dict[str, Callable[[int, torch.dtype], Problem]] = {
    "conv": _conv,
    "selective": _selective,
    "selective groups": lambda n, d: _selective(n, d, groups=2),
    "ssd": _ssd,
    "ssd 256": lambda n, d: _ssd(n, d, states=256),
    "delta": _delta,
    "delta keywise": lambda n, d: _delta(n, d, keywise=True),
    "linear": _linear,
    "rg_lru": _rg_lru,
}
each = pytest.mark.parametrize("name", PROBLEMS)


def _metadata(rows: list[tuple[int, int]], block_size: int) -> tuple[ops.AttentionMetadata, int]:
    """Rows of (query tokens, context) over shuffled blocks, and how many blocks there are."""
    needed = [-(-context // block_size) for _, context in rows]
    order = torch.randperm(sum(needed) + 2, dtype=torch.int32)
    tables = torch.zeros(len(rows), max(needed), dtype=torch.int32)
    taken = 0
    for row, count in enumerate(needed):
        tables[row, :count] = order[taken : taken + count]
        taken += count
    empty = torch.empty(0, dtype=torch.int64, device="cuda")
    counts = [count for count, _ in rows]
    metadata = ops.AttentionMetadata(
        cu_query_lens=torch.tensor([0, *counts]).cumsum(0).int().cuda(),
        context_lens=torch.tensor([context for _, context in rows], dtype=torch.int32).cuda(),
        block_tables=tables.cuda(),
        slot_mapping=empty,
        positions=empty,
        num_decodes=next((i for i, count in enumerate(counts) if count != 1), len(counts)),
        max_query_len=max(counts),
        max_context_len=max(context for _, context in rows),
    )
    return metadata, len(order)


def _run(problem: Problem, cache: torch.Tensor, metadata: ops.AttentionMetadata, block_size: int):
    dtype = problem.packed[0].dtype
    out = torch.full((problem.packed[0].shape[0], *problem.out), float("nan"), device="cuda", dtype=dtype)
    cache = cache.clone()
    problem.call(out, *problem.packed, cache=cache, metadata=metadata, block_size=block_size)
    return out, cache


@pytest.mark.parametrize("dtype", list(BOUND), ids=str)
@pytest.mark.parametrize("op", OPS)
def test_triton_is_chosen(op, dtype):
    assert ops.selected(op, "cuda", dtype) == "triton"


ROWS = {"mixed": PROMPTS, "decode": DECODES, "prompt": [(2000, 2000)]}
# Every pair of a dtype, a kind of rows and a block size.
PAIRS = [
    (dtype, rows, (16, 100, 256)[(i + j) % 3]) for i, dtype in enumerate(BOUND) for j, rows in enumerate(ROWS)
]


@each
@pytest.mark.parametrize(("dtype", "kind_of_rows", "block_size"), PAIRS, ids=str)
def test_triton_is_the_reference(relative_error, name, dtype, block_size, kind_of_rows):
    torch.manual_seed(0)
    rows = ROWS[kind_of_rows]
    metadata, num_blocks = _metadata(rows, block_size)
    problem = PROBLEMS[name](sum(count for count, _ in rows), dtype)
    cache = _normal(num_blocks, *problem.state, dtype=dtype if name == "conv" else torch.float32)
    op = OPS[["conv", "selective", "ssd", "delta", "linear", "rg_lru"].index(name.split()[0])]
    with ops.use_backend(op, "torch"):
        wanted = _run(problem, cache, metadata, block_size)
    with ops.use_backend(op, "triton"):
        got = _run(problem, cache, metadata, block_size)
    for x, y in zip(got, wanted, strict=True):
        assert relative_error(x, y) < BOUND[dtype]
    untouched = (wanted[1] == cache).flatten(1).all(1)
    assert torch.equal(got[1][untouched], cache[untouched])


@each
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_decode_in_a_graph_follows_the_rows(relative_error, name, backend):
    torch.manual_seed(0)
    rows = [(1, 500), (1, 1), (1, 257), (1, 256)]
    metadata, num_blocks = _metadata(rows, 256)
    problem = PROBLEMS[name](len(rows), torch.bfloat16)
    start = _normal(num_blocks, *problem.state, dtype=torch.bfloat16 if name == "conv" else torch.float32)
    cache, out = start.clone(), torch.zeros(len(rows), *problem.out, device="cuda", dtype=torch.bfloat16)
    op = OPS[["conv", "selective", "ssd", "delta", "linear", "rg_lru"].index(name.split()[0])]
    with ops.use_backend(op, backend):

        def call():
            problem.call(out, *problem.packed, cache=cache, metadata=metadata, block_size=256)

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    for contexts in ([500, 1, 257, 256], [300, 0, 2, 0], [0, 0, 0, 0]):
        metadata.context_lens.copy_(torch.tensor(contexts))
        cache.copy_(start)
        graph.replay()
        torch.cuda.synchronize()
        with ops.use_backend(op, "torch"):
            wanted = _run(problem, start, metadata, 256)
        if any(contexts):
            assert relative_error(out, wanted[0]) < 1e-2
            assert relative_error(cache, wanted[1]) < 1e-2
        else:
            assert not out.any()
            assert torch.equal(cache, start)
