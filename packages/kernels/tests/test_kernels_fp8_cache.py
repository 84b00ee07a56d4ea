"""A KV cache in e4m3: the reference against plain formulas, and the Triton kernels against the reference.

The latter run in Triton's interpreter, in a process of their own that `test_in_the_interpreter` starts, or
compiled where there is a GPU (marker gpu).
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import InvalidArgument

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process test_in_the_interpreter starts")
MIXED = [(1, 40), (1, 1), (1, 0), (1, 300), (5, 30), (20, 45)]
E4M3 = torch.float8_e4m3fn


@pytest.mark.skipif(INTERPRETED, reason="is the inner process")
def test_in_the_interpreter(rerun_in_the_interpreter):
    assert rerun_in_the_interpreter() >= 12


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _scales(num_heads, device="cpu"):
    """Those of keys and of values, of different size by head."""
    generator = torch.Generator().manual_seed(1)
    return tuple((0.2 + torch.rand(num_heads, generator=generator)).to(device) for _ in range(2))


def _near_e4m3(generator, shape):
    """Numbers just beyond those of e4m3: the interpreter of triton 3.7.1 loses the carry of a rounding."""
    numbers = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).view(E4M3).float()
    return torch.where(numbers.isnan(), 500.0, numbers * 1.01)


def _written(backend, dtype, scales, device="cpu", numbers=None):
    """Caches [key, value] after a write of tokens some of which lie outside the range of e4m3."""
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(6, 10, 24, generator=generator) * 200 if numbers is None else numbers
    fused = fused.to(device, dtype)
    slots = torch.tensor([5, -1, 39, 0, 8, 17], device=device)
    caches = torch.zeros(5, 2, 8, 3, 24, device=device).to(E4M3)
    options = {} if scales is None else dict(zip(("key_scale", "value_scale"), scales, strict=True))
    with ops.use_backend("write_kv", backend):
        ops.write_kv(fused[:, :3], fused[:, 3:6], caches[:, 0], caches[:, 1], slots, **options)
    return fused, slots, caches.view(torch.uint8)


@pytest.mark.parametrize("with_scales", [False, True])
def test_written_tokens_are_the_nearest_numbers(with_scales):
    scales = _scales(3) if with_scales else None
    fused, slots, caches = _written("torch", torch.float32, scales)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, 8)
            for part in range(2):
                x = fused[token, 3 * part : 3 * part + 3]
                x = x if scales is None else x / scales[part][:, None]
                expected = x.clamp(-448, 448).to(E4M3).view(torch.uint8)
                assert torch.equal(caches[block, part, offset], expected)
    assert int((caches.view(E4M3).float().abs() == 448).sum()) > 0


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("with_scales", [False, True])
def test_triton_writes_the_same_bits(dtype, with_scales):
    generator = torch.Generator().manual_seed(2)
    numbers = _near_e4m3(generator, (6, 10, 24))
    scales = None
    if with_scales:
        scales = tuple(2.0 ** torch.randint(-3, 4, (3,), generator=generator) for _ in range(2))
        numbers[:, :3] *= scales[0][:, None]
        numbers[:, 3:6] *= scales[1][:, None]
    expected = _written("torch", dtype, scales, numbers=numbers)[2]
    assert torch.equal(_written("triton_interpreter", dtype, scales, numbers=numbers)[2], expected)


def _case(make_attention_case, **options):
    return make_attention_case(MIXED, head_size=32, cache_dtype=E4M3, **options)


def test_the_reference_reads_scaled_numbers(make_attention_case, relative_error):
    case = _case(make_attention_case)
    key_scale, value_scale = _scales(2)
    with ops.use_backend("paged_attention", "torch"):
        out = case.run(key_scale=key_scale, value_scale=value_scale)
        wide = replace(
            case,
            key_cache=case.key_cache.float() * key_scale[:, None],
            value_cache=case.value_cache.float() * value_scale[:, None],
        )
        assert relative_error(out, wide.run()) < 1e-6
        assert relative_error(case.run(), wide.run()) > 1e-2


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("with_scales", [False, True])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (4, 1)])
def test_triton_attends(make_attention_case, relative_error, dtype, with_scales, num_heads, num_kv_heads):
    case = _case(make_attention_case, num_heads=num_heads, num_kv_heads=num_kv_heads, dtype=dtype)
    options = {}
    if with_scales:
        options = dict(zip(("key_scale", "value_scale"), _scales(num_kv_heads), strict=True))
    with ops.use_backend("paged_attention", "torch"):
        expected = case.run(**options)
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(**options), expected) < (1e-5 if dtype == torch.float32 else 3e-3)


@inside
def test_triton_shares_prefixes(make_attention_case, share_prefixes, relative_error):
    case = _case(make_attention_case)
    share_prefixes(case, [([0, 3], 32)])
    options = dict(zip(("key_scale", "value_scale"), _scales(2), strict=True))
    with ops.use_backend("paged_attention", "torch"):
        expected = case.run(**options)
    with ops.use_backend("paged_attention", "triton_interpreter"):
        assert relative_error(case.run(**options), expected) < 1e-5


def test_scales_are_checked(make_attention_case):
    case = _case(make_attention_case)
    key_scale, value_scale = _scales(2)
    with ops.use_backend("paged_attention", "torch"):
        for options, field in (
            ({"key_scale": key_scale}, "value_scale"),
            ({"key_scale": key_scale[:1], "value_scale": value_scale}, "key_scale"),
            ({"key_scale": key_scale, "value_scale": value_scale.double()}, "value_scale"),
        ):
            with pytest.raises(InvalidArgument) as caught:
                case.run(**options)
            assert caught.value.field == field
    wide = make_attention_case(MIXED, head_size=32)
    with ops.use_backend("paged_attention", "torch"), pytest.raises(InvalidArgument) as caught:
        wide.run(key_scale=key_scale, value_scale=value_scale)
    assert caught.value.field == "key_cache"


def test_without_a_gpu_the_reference_is_chosen(make_attention_case, relative_error):
    case = _case(make_attention_case)
    with ops.use_backend("paged_attention", "torch"):
        expected = case.run()
    assert torch.equal(case.run(), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_written_on_the_gpu(dtype):
    scales = _scales(3, "cuda")
    expected = _written("torch", dtype, scales, "cuda")[2]
    assert torch.equal(_written("triton", dtype, scales, "cuda")[2], expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("ratio", [1, 4])
@pytest.mark.parametrize("shares", [False, True])
def test_attention_on_the_gpu(make_attention_case, share_prefixes, relative_error, head_size, ratio, shares):
    case = make_attention_case(
        [(1, 3000), (1, 700), (1, 0), (1, 900), (130, 130), (17, 1000)],
        num_heads=2 * ratio,
        num_kv_heads=2,
        head_size=head_size,
        dtype=torch.bfloat16,
        cache_dtype=E4M3,
        device="cuda",
    )
    if shares:
        share_prefixes(case, [([0, 3, 1], 640)])
    options = dict(zip(("key_scale", "value_scale"), _scales(2, "cuda"), strict=True))
    with ops.use_backend("paged_attention", "torch"):
        expected = case.run(**options)
    with ops.use_backend("paged_attention", "triton"):
        assert relative_error(case.run(**options), expected) < 1e-2
