"""The recurrent ops on the CPU: against transformers' own torch code, and how states travel over blocks.

Caches are filled with NaN, so that a state that must not be read shows. The Triton kernels take the same
tests in a process that `test_in_the_interpreter` starts: the interpreter must be chosen before triton is
imported.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument
from llm_kernels.reference import state_rows

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
OPS = ("causal_conv1d", "selective_scan", "ssd_scan", "gated_delta_rule", "linear_attention", "rg_lru")
# Sums of strong decays are rounded at other places by other chunks.
BOUND = 5e-5 if INTERPRETED else 1e-5
Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """An op on one problem: `packed` are its inputs [T, ...], `model` is what transformers yields."""

    name: str
    state: tuple[int, ...]
    out: tuple[int, ...]
    packed: Inputs
    call: Callable[..., None]
    model: Callable[[Inputs], torch.Tensor]

    def tokens(self, at: torch.Tensor | slice) -> Inputs:
        return {name: x[at] for name, x in self.packed.items()}


def _randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _conv(num_tokens: int, *, bias: bool = True, width: int = 4) -> Case:
    from transformers.models.mamba.modeling_mamba import causal_conv1d_fn

    weight, offset = _randn(24, width, seed=1), _randn(24, seed=2) if bias else None
    activation = "silu" if bias else None

    def call(out, x, cache, metadata, block_size):
        ops.causal_conv1d(
            out, x, weight, offset, cache, metadata, block_size=block_size, activation=activation
        )

    def model(x):
        return causal_conv1d_fn(x["x"].t().unsqueeze(0), weight, offset, activation=activation)[0].t()

    return Case("conv", (24, width - 1), (24,), {"x": _randn(num_tokens, 24, seed=3)}, call, model)


def _mamba(num_tokens: int, *, groups: int = 1) -> Case:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    size, states = 24, 16
    A, D, bias = -_randn(size, states, seed=1).exp(), _randn(size, seed=2), _randn(size, seed=3) - 2

    def call(out, x, dt, B, C, cache, metadata, block_size):
        ops.selective_scan(out, x, dt, A, B, C, D, cache, metadata, block_size=block_size, dt_bias=bias)

    def model(x):
        # Zamba runs one scan for each group.
        part = size // groups
        outs = []
        for group in range(groups):
            at = slice(group * part, (group + 1) * part)
            B, C = (x[name] if groups == 1 else x[name][:, group] for name in ("B", "C"))
            scan = mamba_selective_scan(
                x["x"][:, at].t()[None],
                x["dt"][:, at].t()[None],
                A[at],
                B.t()[None],
                C.t()[None],
                D=D[at],
                delta_bias=bias[at],
                delta_softplus=True,
            )
            outs.append(scan[0].t())
        return torch.cat(outs, dim=1)

    shape = (num_tokens, states) if groups == 1 else (num_tokens, groups, states)
    packed = {
        "x": _randn(num_tokens, size, seed=4),
        "dt": _randn(num_tokens, size, seed=5),
        "B": _randn(*shape, seed=6),
        "C": _randn(*shape, seed=7),
    }
    return Case("mamba", (size, states), (size,), packed, call, model)


def _mamba2(num_tokens: int, *, wide_skip: bool = False) -> Case:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    heads, head_size, groups, states, limit = 6, 8, 2, 16, (0.01, 2.0)
    A, bias = -_randn(heads, seed=1).exp(), _randn(heads, seed=3) - 1
    D = _randn(heads, head_size, seed=2) if wide_skip else _randn(heads, seed=2)

    def call(out, x, dt, B, C, cache, metadata, block_size):
        ops.ssd_scan(
            out, x, dt, A, B, C, D, cache, metadata, block_size=block_size, dt_bias=bias, dt_limit=limit
        )

    def model(x):
        out = mamba2_chunk_scan(
            *(x[name][None] for name in ("x", "dt")),
            A,
            *(x[name][None] for name in ("B", "C")),
            chunk_size=32,
            D=None if wide_skip else D,
            dt_bias=bias,
            dt_softplus=True,
            dt_limit=limit,
        )[0]
        return out + x["x"] * D if wide_skip else out

    packed = {
        "x": _randn(num_tokens, heads, head_size, seed=4),
        "dt": _randn(num_tokens, heads, seed=5),
        "B": _randn(num_tokens, groups, states, seed=6),
        "C": _randn(num_tokens, groups, states, seed=7),
    }
    return Case("mamba2", (heads, head_size, states), (heads, head_size), packed, call, model)


def _delta(num_tokens: int, *, keywise: bool = False, recurrent: bool = False) -> Case:
    from transformers.models.kimi_linear import modeling_kimi_linear as kimi
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    heads, groups, key_size, value_size = 4, 4 if keywise else 2, 16, 24
    if keywise:
        function = kimi.recurrent_kimi_delta_attention if recurrent else kimi.chunk_kimi_delta_attention
    else:
        function = qwen.torch_recurrent_gated_delta_rule if recurrent else qwen.torch_chunk_gated_delta_rule

    def call(out, q, k, v, g, beta, cache, metadata, block_size):
        ops.gated_delta_rule(
            out, q, k, v, g, beta, cache, metadata, block_size=block_size, scale=key_size**-0.5
        )

    def model(x):
        q, k, v, g, beta = (x[name][None] for name in ("q", "k", "v", "g", "beta"))
        return function(q, k, v, g=g, beta=beta, initial_state=None, output_final_state=False,
                        use_qk_l2norm_in_kernel=True)[0][0]  # fmt: skip

    decay_shape = (num_tokens, heads, key_size) if keywise else (num_tokens, heads)
    packed = {
        "q": _randn(num_tokens, groups, key_size, seed=1),
        "k": _randn(num_tokens, groups, key_size, seed=2),
        "v": _randn(num_tokens, heads, value_size, seed=3),
        # From nearly no decay to one that forgets at once.
        "g": -(2 * _randn(*decay_shape, seed=4) - 1).exp(),
        "beta": torch.sigmoid(_randn(num_tokens, heads, seed=5)),
    }
    return Case("delta", (heads, key_size, value_size), (heads, value_size), packed, call, model)


def _lightning(num_tokens: int) -> Case:
    from transformers import MiniMaxConfig
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    config = MiniMaxConfig(
        hidden_size=64, num_attention_heads=4, num_hidden_layers=4, head_dim=16, block_size=32
    )
    torch.manual_seed(0)
    layer = MiniMaxLightningAttention(config, layer_idx=1)
    layer.norm = torch.nn.Identity()
    layer.out_proj = torch.nn.Identity()
    hidden = _randn(num_tokens, 64, seed=1)
    with torch.no_grad():
        layer.output_gate.weight.zero_()
        qkv = layer.act_fn(layer.qkv_proj(hidden)).view(num_tokens, 4, 48)
    packed = dict(zip("qkv", qkv.split(16, dim=2), strict=True)) | {"hidden": hidden}

    def call(out, q, k, v, hidden, cache, metadata, block_size):
        ops.linear_attention(out, q, k, v, layer.slope_rate.flatten(), cache, metadata, block_size=block_size)

    def model(x):
        with torch.no_grad():  # The output gate is sigmoid(0).
            return 2 * layer(x["hidden"][None], None, None)[0][0].view(-1, 4, 16)

    return Case("lightning", (4, 16, 16), (4, 16), packed, call, model)


def _griffin(num_tokens: int) -> Case:
    from transformers import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

    unit = RecurrentGemmaRglru(RecurrentGemmaConfig(lru_width=32, num_attention_heads=4))
    with torch.no_grad():
        for seed, parameter in enumerate(unit.parameters()):
            parameter.copy_(_randn(*parameter.shape, seed=seed))
    x = _randn(num_tokens, 32, seed=9)

    def gate(weight, bias):
        parts = torch.einsum("thi,hij->thj", x.view(num_tokens, 4, 8), weight) + bias
        return parts.reshape(num_tokens, 32).detach()

    packed = {
        "x": x,
        "i": gate(unit.input_gate_weight, unit.input_gate_bias),
        "r": gate(unit.recurrent_gate_weight, unit.recurrent_gate_bias),
    }

    def call(out, x, i, r, cache, metadata, block_size):
        ops.rg_lru(out, x, i, r, unit.recurrent_param.detach(), cache, metadata, block_size=block_size)

    def model(x):
        unit.recurrent_states = None
        with torch.no_grad():
            return unit(x["x"][None], torch.arange(x["x"].shape[0])[None])[0]

    return Case("griffin", (32,), (32,), packed, call, model)


CASES: dict[str, Callable[[int], Case]] = {
    "conv": _conv,
    "conv plain": lambda n: _conv(n, bias=False, width=3),
    "mamba": _mamba,
    "zamba": lambda n: _mamba(n, groups=2),
    "mamba2": _mamba2,
    "mamba2 wide D": lambda n: _mamba2(n, wide_skip=True),
    "qwen3-next": _delta,
    "qwen3-next recurrent": lambda n: _delta(n, recurrent=True),
    "kimi": lambda n: _delta(n, keywise=True),
    "kimi recurrent": lambda n: _delta(n, keywise=True, recurrent=True),
    "lightning": _lightning,
    "griffin": _griffin,
}
ONE_EACH = ["conv", "conv plain", "mamba", "zamba", "mamba2", "qwen3-next", "kimi", "lightning", "griffin"]
each = pytest.mark.parametrize("name", ONE_EACH)


@dataclass(slots=True)
class Pool:
    """A pool of states and the sequences in it, stepped as a runner would."""

    case: Case
    block_size: int
    num_blocks: int = 64
    dtype: torch.dtype = torch.float32
    cache: torch.Tensor = field(init=False)
    tables: dict[int, list[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        # Strided in dimension 0, as where groups of different kinds overlay one pool of pages.
        pages = torch.full((self.num_blocks, 2, *self.case.state), float("nan"), dtype=self.dtype)
        self.cache = pages[:, 1]
        self.free = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(0)).tolist()

    def metadata(self, rows: list[tuple[int | None, int]]) -> ops.AttentionMetadata:
        """`rows`: (sequence or None for padding, query tokens), decode rows first."""
        contexts = []
        for sequence, count in rows:
            if sequence is None:
                contexts.append(0)
                continue
            length = self.lengths.get(sequence, 0) + count
            table = self.tables.setdefault(sequence, [])
            while len(table) * self.block_size < length:
                table.append(self.free.pop())
            self.lengths[sequence] = length
            contexts.append(length)
        tables = torch.full((len(rows), 40), -7, dtype=torch.int32)
        for index, (sequence, _) in enumerate(rows):
            if sequence is not None:
                table = self.tables[sequence]
                tables[index, : len(table)] = torch.tensor(table, dtype=torch.int32)
        counts = [count for _, count in rows]
        empty = torch.empty(0, dtype=torch.int64)
        return ops.AttentionMetadata(
            cu_query_lens=torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=tables,
            slot_mapping=empty,
            positions=empty,
            num_decodes=next((i for i, count in enumerate(counts) if count != 1), len(counts)),
            max_query_len=max(counts),
            max_context_len=max(contexts),
        )

    def step(self, rows: list[tuple[int | None, int]]) -> list[torch.Tensor]:
        """Outputs of each row; sequence s of length n reads the case's tokens from 0 on."""
        starts = [0 if s is None else self.lengths.get(s, 0) for s, _ in rows]
        metadata = self.metadata(rows)
        at = torch.cat([torch.arange(b, b + n) for b, (_, n) in zip(starts, rows, strict=True)])
        return list(self.call(at, metadata).split([n for _, n in rows]))

    def call(self, at: torch.Tensor, metadata: ops.AttentionMetadata) -> torch.Tensor:
        inputs = self.case.tokens(at)
        out = torch.full((at.numel(), *self.case.out), float("nan"))
        self.case.call(out, *inputs.values(), cache=self.cache, metadata=metadata, block_size=self.block_size)
        return out

    def state(self, sequence: int, length: int) -> torch.Tensor:
        return self.cache[self.tables[sequence][(length - 1) // self.block_size]]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _interpreter():
    with contextlib.ExitStack() as stack:
        for op in OPS if INTERPRETED else ():
            stack.enter_context(ops.use_backend(op, "triton_interpreter"))
        yield


torch_only = pytest.mark.skipif(INTERPRETED, reason="of the reference, or too long for the interpreter")


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter(rerun_in_the_interpreter):
    assert rerun_in_the_interpreter() >= 30


def _state_after(case: Case, length: int) -> torch.Tensor:
    """By one pass of the reference in one block."""
    pool = Pool(case, 4096, num_blocks=1)
    with contextlib.ExitStack() as stack:
        for op in OPS:
            stack.enter_context(ops.use_backend(op, "torch"))
        pool.step([(0, length)])
    return pool.state(0, length)


# The interpreter takes a millisecond for a line of a kernel.
SIZES = [(1, 16), (5, 16), (64, 512), (65, 512), (200, 16), (200, 100), (700, 256)]


@pytest.mark.parametrize("name", ONE_EACH if INTERPRETED else CASES)
@pytest.mark.parametrize(("num_tokens", "block_size"), [(45, 40)] if INTERPRETED else SIZES)
def test_one_pass_is_the_models(relative_error, name, num_tokens, block_size):
    case = CASES[name](num_tokens)
    (out,) = Pool(case, block_size).step([(0, num_tokens)])
    assert relative_error(out, case.model(case.tokens(slice(None)))) < BOUND


@each
@pytest.mark.parametrize("block_size", [8] if INTERPRETED else [1, 16, 24, 64])
def test_rows_chunks_and_decode_steps_are_one_pass(relative_error, name, block_size):
    case = CASES[name](39)
    expected = case.model(case.tokens(slice(None)))
    pool, got = Pool(case, block_size, num_blocks=160), {s: [] for s in range(4)}
    steps = [
        [(0, 7), (1, 20)],
        [(0, 1), (None, 1), (2, 17), (1, 5)],
        [(2, 1), (0, 1), (1, 1)],
        [(None, 1), (1, 1), (0, 1), (None, 1)],
        [(1, 1), (3, 39), (2, 15), (0, 3)],
        [(0, 1), (1, 1), (2, 1)],
        [(0, 2), (1, 3)],
    ]
    for rows in steps:
        for (sequence, _), out in zip(rows, pool.step(rows), strict=True):
            if sequence is None:
                assert not out.any()
            else:
                got[sequence].append(out)
    for sequence, outs in got.items():
        out = torch.cat(outs)
        assert relative_error(out, expected[: len(out)]) < BOUND
        length = pool.lengths[sequence]
        for border in {*range(block_size, length + 1, block_size), length}:
            assert relative_error(pool.state(sequence, border), _state_after(case, border)) < BOUND
    held = {block for table in pool.tables.values() for block in table}
    others = [block for block in range(pool.num_blocks) if block not in held]
    assert pool.cache[others].isnan().all()


@torch_only
@each
def test_a_checkpoint_is_shared(relative_error, name):
    case = CASES[name](70)
    expected = case.model(case.tokens(slice(None)))
    pool = Pool(case, 16)
    pool.step([(0, 70)])
    before = pool.cache.clone()
    for sequence, borders in ((1, 3), (2, 4)):
        pool.tables[sequence], pool.lengths[sequence] = pool.tables[0][:borders], borders * 16
    outs = pool.step([(1, 1), (2, 6)])
    assert relative_error(outs[0], expected[48:49]) < BOUND
    assert relative_error(outs[1], expected[64:70]) < BOUND
    shared = pool.tables[0]
    assert torch.equal(pool.cache[shared], before[shared])


@each
@pytest.mark.parametrize("count", [1, 3])
def test_padding_rows_write_nothing(name, count):
    case = CASES[name](5)
    pool = Pool(case, 16)
    metadata = pool.metadata([(None, count)] * 2)
    metadata.block_tables.zero_()
    out = pool.call(torch.arange(2 * count) % 5, metadata)
    assert not out.any()
    assert pool.cache.isnan().all()


@torch_only
@each
def test_bad_blocks_are_refused_before_anything_is_written(name):
    case = CASES[name](40)
    for rows in ([(0, 1), (1, 1)], [(0, 1), (1, 40)]):
        for bad in (-1, 64):
            pool = Pool(case, 16)
            metadata = pool.metadata(rows)
            metadata.block_tables[1, (metadata.context_lens[1] - 1) // 16] = bad
            with pytest.raises(InvalidArgument, match="block_tables"):
                pool.call(torch.arange(sum(n for _, n in rows)) % 40, metadata)
            assert pool.cache.isnan().all()


@torch_only
@each
def test_bad_arguments_name_the_field(name):
    case = CASES[name](4)
    pool = Pool(case, 16)
    metadata = pool.metadata([(0, 4)])
    pool.block_size = 0
    with pytest.raises(InvalidArgument, match="block_size"):
        pool.call(torch.arange(4), metadata)
    pool = Pool(case, 16)
    pool.cache = pool.cache[:, 1:]
    with pytest.raises(InvalidArgument, match="state_cache"):
        pool.call(torch.arange(4), metadata)
    pool = Pool(case, 16)
    metadata.context_lens[0] = 3
    with pytest.raises(InvalidArgument, match="context_lens"):
        pool.call(torch.arange(4), metadata)
    metadata.context_lens[0] = 4
    metadata.block_tables = metadata.block_tables[:, :0]
    with pytest.raises(InvalidArgument, match="block_tables"):
        pool.call(torch.arange(4), metadata)


@torch_only
@each
def test_half_inputs_and_states(relative_error, name):
    case = CASES[name](40)
    expected = case.model(case.tokens(slice(None)))
    pool = Pool(case, 16, dtype=torch.bfloat16 if name.startswith("conv") else torch.float32)
    halves = {k: x if k in ("g", "dt") else x.bfloat16() for k, x in case.packed.items()}
    for begin, count in ((0, 39), (39, 1)):
        metadata = pool.metadata([(0, count)])
        out = torch.empty(count, *case.out, dtype=torch.bfloat16)
        inputs = {k: x[begin : begin + count] for k, x in halves.items()}
        case.call(out, *inputs.values(), cache=pool.cache, metadata=metadata, block_size=16)
        assert relative_error(out, expected[begin : begin + count]) < 2e-2


@torch_only
@each
@pytest.mark.parametrize("large", [1, 2**30])
def test_decode_of_large_and_of_small_states_is_one(monkeypatch, relative_error, name, large):
    monkeypatch.setattr(state_rows, "_LARGE_STATE", large)
    monkeypatch.setattr(state_rows, "_STATES_AT_ONCE", 2 * large)
    test_rows_chunks_and_decode_steps_are_one_pass(relative_error, name, 16)


@torch_only
@each
def test_decode_as_on_a_device_is_one(monkeypatch, relative_error, name):
    monkeypatch.setattr(state_rows, "_decode_on_host", state_rows._decode_on_device)
    test_rows_chunks_and_decode_steps_are_one_pass(relative_error, name, 16)
    pool = Pool(CASES[name](5), 16)
    metadata = pool.metadata([(None, 1)] * 2)
    metadata.block_tables.zero_()
    assert not pool.call(torch.arange(2), metadata).any()
    assert pool.cache.isnan().all()


@torch_only
def test_same_keys_do_not_break_the_chunked_delta_rule(relative_error):
    case = _delta(256)
    case.packed["k"][:] = case.packed["k"][:1]
    case.packed["g"][:] = -1e-4
    case.packed["beta"][:] = 1.0
    (out,) = Pool(case, 256).step([(0, 256)])
    stepped = Pool(case, 256)
    wanted = torch.cat([stepped.step([(0, 1)])[0] for _ in range(256)])
    assert relative_error(out, wanted) < BOUND
