"""KV write, norms, rope and gated activations on the CPU: C++ in every instruction set and the references."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from llm_kernels import ops
from llm_kernels.cpu.library import native
from llm_kernels.errors import BackendUnavailable, InvalidArgument

DTYPES = [torch.float32, torch.bfloat16]
# One rounding of a result that is right to float32: at most one unit in the last of 8 bits.
BOUND = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


def _isas() -> list[str]:
    try:
        best = native("cpu_isa")()
    except BackendUnavailable:
        return []
    order = ["baseline", "avx2", "avx512", "amx"]
    return order[: order.index(best) + 1]


@pytest.fixture(params=_isas())
def isa(request):
    before = native("cpu_isa")()
    native("force_cpu_isa")(request.param)
    yield request.param
    native("force_cpu_isa")(before)


def _randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", ["torch", "cpp"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache_dtype", DTYPES, ids=str)
def test_write_kv_reaches_its_slots_only(name, dtype, cache_dtype):
    num_blocks, block_size, heads, size = 40, 16, 3, 64
    fused = _randn(200, 12, size, dtype=dtype)
    key, value = fused[:, 6:9], fused[:, 9:]
    slots = torch.randperm(num_blocks * block_size, generator=torch.Generator().manual_seed(1))[:200]
    slots[::7] = -1
    cache = _randn(num_blocks, 2, block_size, heads, size, dtype=cache_dtype)
    before = cache.clone()
    with ops.use_backend("write_kv", name):
        ops.write_kv(key, value, cache[:, 0], cache[:, 1], slots)
    touched = torch.zeros(num_blocks * block_size, dtype=torch.bool)
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        touched[slot] = True
        at = divmod(slot, block_size)
        assert torch.equal(cache[at[0], 0, at[1]], key[token].to(cache_dtype))
        assert torch.equal(cache[at[0], 1, at[1]], value[token].to(cache_dtype))
    kept = ~touched.view(num_blocks, block_size)
    assert torch.equal(cache.transpose(1, 2)[kept], before.transpose(1, 2)[kept])


@pytest.mark.parametrize("name", ["torch", "cpp"])
@pytest.mark.parametrize("slot", [64, 2**40, -2, -(2**63)])
def test_write_kv_refuses_a_bad_slot_and_writes_nothing(name, slot):
    cache = torch.zeros(2, 4, 16, 2, 8)
    with ops.use_backend("write_kv", name), pytest.raises(InvalidArgument) as caught:
        ops.write_kv(_randn(3, 2, 8), _randn(3, 2, 8), cache[0], cache[1], torch.tensor([1, slot, 2]))
    assert caught.value.field == "slot_mapping"
    assert not cache.any()


@pytest.mark.parametrize("name", ["torch", "cpp"])
@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("value_TKV", {"value": torch.zeros(3, 1, 8)}),
        ("key_cache", {"key_cache": torch.zeros(4, 16, 2, 16)}),
        ("value_cache", {"value_cache": torch.zeros(4, 8, 2, 8)}),
        ("slot_mapping", {"slots": torch.tensor([1, 2])}),
        ("slot_mapping", {"slots": torch.tensor([1, 2, 3], dtype=torch.int32)}),
    ],
)
def test_write_kv_names_what_does_not_fit(name, field, change):
    given = {
        "key": torch.zeros(3, 2, 8),
        "value": torch.zeros(3, 2, 8),
        "key_cache": torch.zeros(4, 16, 2, 8),
        "value_cache": torch.zeros(4, 16, 2, 8),
        "slots": torch.tensor([1, 2, 3]),
    } | change
    with ops.use_backend("write_kv", name), pytest.raises(InvalidArgument) as caught:
        ops.write_kv(*given.values())
    assert caught.value.field == field


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 576), (70, 576), (9, 3, 64), (4, 5, 13), (0, 64), (3, 1)], ids=str)
def test_rms_norm(isa, relative_error, dtype, shape):
    wide = _randn(*shape[:-1], 2 * shape[-1], dtype=dtype)
    x = wide[..., : shape[-1]]
    weight = _randn(shape[-1], seed=1).to(dtype)
    out = torch.empty(shape, dtype=dtype)
    with ops.use_backend("rms_norm", "cpp"):
        ops.rms_norm(out, x, weight, 1e-5)
    expected = F.rms_norm(x.float(), (shape[-1],), weight.float(), 1e-5)
    assert relative_error(out, expected) < BOUND[dtype]
    with ops.use_backend("rms_norm", "torch"):
        ops.rms_norm(out, x, weight, 1e-5)
    assert relative_error(out, expected) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fused_add_rms_norm_equals_the_two_ops(isa, relative_error, dtype):
    x, residual, weight = (
        _randn(33, 200, dtype=dtype),
        _randn(33, 200, dtype=dtype, seed=1),
        _randn(200, seed=2),
    )
    total = residual + x
    expected = torch.empty_like(x)
    with ops.use_backend("rms_norm", "torch"):
        ops.rms_norm(expected, total, weight, 1e-6)
    for name in ("cpp", "torch"):
        a, r = x.clone(), residual.clone()
        with ops.use_backend("fused_add_rms_norm", name):
            ops.fused_add_rms_norm(a, r, weight, 1e-6)
        assert torch.equal(r, total)
        assert relative_error(a, expected) < BOUND[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rot", [64, 24, 2])
def test_rope_turns_pairs_and_keeps_the_rest(isa, relative_error, dtype, interleaved, rot):
    fused = _randn(50, 12, 64, dtype=dtype)
    positions = torch.randint(0, 100, (50,), generator=torch.Generator().manual_seed(0))
    angle = torch.arange(100)[:, None] * 10000.0 ** (-torch.arange(rot // 2) / max(rot // 2, 1))
    table = torch.cat([angle.cos(), angle.sin()], dim=-1)
    # As complex numbers, independent of the reference.
    turned = fused.float().clone()
    pair = (slice(0, rot, 2), slice(1, rot, 2)) if interleaved else (slice(0, rot // 2), slice(rot // 2, rot))
    spun = torch.complex(turned[..., pair[0]], turned[..., pair[1]]) * torch.polar(
        torch.ones_like(angle), angle
    )[positions].unsqueeze(1)
    turned[..., pair[0]], turned[..., pair[1]] = spun.real, spun.imag
    for name in ("cpp", "torch"):
        x = fused.clone()
        with ops.use_backend("rotary_embedding", name):
            ops.rotary_embedding(x[:, :9], x[:, 9:], positions, table, interleaved=interleaved)
        assert relative_error(x, turned) < BOUND[dtype]
        assert torch.equal(x[..., rot:], fused[..., rot:])


@pytest.mark.parametrize("position", [-1, 10])
def test_rope_refuses_a_position_outside_the_table(position):
    query = torch.ones(2, 1, 16)
    with ops.use_backend("rotary_embedding", "cpp"), pytest.raises(InvalidArgument, match="positions"):
        ops.rotary_embedding(query, query.clone(), torch.tensor([0, position]), torch.zeros(10, 16))
    assert (query == 1).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation(isa, relative_error, dtype, kind):
    gate_up = _randn(21, 2 * 1001, dtype=dtype) * 4
    gate, up = gate_up.float().chunk(2, dim=-1)
    expected = {
        "silu": F.silu(gate),
        "gelu": F.gelu(gate),
        "gelu_tanh": F.gelu(gate, approximate="tanh"),
    }[kind] * up
    for name in ("cpp", "torch"):
        out = torch.empty(21, 1001, dtype=dtype)
        with ops.use_backend("gated_activation", name):
            ops.gated_activation(out, gate_up, kind)
        assert relative_error(out, expected) < BOUND[dtype]


@pytest.mark.parametrize("name", ["torch", "cpp"])
def test_gated_activation_refuses_an_unknown_kind(name):
    with ops.use_backend("gated_activation", name), pytest.raises(InvalidArgument) as caught:
        ops.gated_activation(torch.zeros(1, 2), torch.zeros(1, 4), "nosuch")
    assert caught.value.field == "kind"


def test_extremes_stay_finite_or_are_passed_on(isa):
    gate_up = torch.tensor([[1e30, -1e30, 1e4, float("nan"), 1.0, 1.0, 1.0, 1.0]])
    for name in ("cpp", "torch"):
        out = torch.empty(1, 4)
        with ops.use_backend("gated_activation", name):
            ops.gated_activation(out, gate_up, "silu")
        assert out[0, 0] == 1e30
        assert out[0, 1].abs() < 1e-3
        assert out[0, 2] == 1e4
        assert out[0, 3].isnan()


def test_linear_is_torchs():
    x, weight, bias = _randn(3, 8), _randn(5, 8), _randn(5)
    with ops.use_backend("linear", "torch"):
        assert torch.equal(ops.linear(x, weight, bias), F.linear(x, weight, bias))
