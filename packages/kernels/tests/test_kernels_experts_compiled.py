"""The Triton kernels of norms, activations and experts compiled for sm_90 where there is no GPU."""

from __future__ import annotations

import pytest
import torch

SHARED_MEMORY_BYTES = 227 * 1024
NAMES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}


def _compile(kernel, pointers, constants, *, floats=(), num_warps=4, num_stages=3):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if not hasattr(kernel, "arg_names") or not hasattr(kernel, "cache_key"):
        pytest.skip("the interpreter is on")
    types = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    types |= pointers | dict.fromkeys(floats, "fp32")
    signature = {argument: types[argument] for argument in kernel.arg_names}
    aligned = [i for i, (k, v) in enumerate(signature.items()) if v.startswith("*") or "stride" in k]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(k),): v for k, v in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": num_warps, "num_stages": num_stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(NAMES), ids=str)
@pytest.mark.parametrize("num_pairs", [8, 1000, 4000, 64000])
def test_the_grouped_gemm_fits(dtype, num_pairs):
    pytest.importorskip("triton")
    from llm_kernels.triton.experts import gemm_tile
    from llm_kernels.triton.experts_kernels import grouped_gemm_kernel

    tile = gemm_tile(dtype, num_pairs, 64)
    pointers = dict.fromkeys(["out", "x", "weight", "bias"], NAMES[dtype])
    pointers |= {"pair_weights": "*fp32", "pairs": "*i32", "block_experts": "*i32"}
    constants = {
        "PAIRS_PER_ROW": 8,
        "HAS_BIAS": True,
        "SCALE": "after_bias",
        "EVEN_K": True,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "GROUP_M": 8,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
    }
    compiled = _compile(
        grouped_gemm_kernel,
        pointers,
        constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    assert 0 < compiled.metadata.shared <= SHARED_MEMORY_BYTES
    assert "mma" in compiled.asm["ptx"] or dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("counted", [False, True])
def test_the_sort_compiles(counted):
    pytest.importorskip("triton")
    from llm_kernels.triton.experts_kernels import align_kernel, count_kernel

    _compile(count_kernel, {"ids": "*i64", "counts": "*i32"}, {"CHUNK": 1024})
    pointers = {"ids": "*i64", "counts": "*i32", "pairs": "*i32", "block_experts": "*i32"}
    constants = {"COUNTED": counted, "N_PAD": 128, "CHUNK": 1024 if counted else 128, "BLOCK_M": 16}
    _compile(align_kernel, pointers, constants, num_warps=4 if counted else 8)


@pytest.mark.slow
@pytest.mark.parametrize("zero_experts", [0, 4])
def test_the_combination_compiles(zero_experts):
    pytest.importorskip("triton")
    from llm_kernels.triton.experts_kernels import combine_kernel

    pointers = dict.fromkeys(["out", "pair_outputs", "x"], "*bf16") | {"ids": "*i64", "pair_weights": "*fp32"}
    _compile(combine_kernel, pointers, {"ZERO_EXPERTS": zero_experts, "K": 8, "BLOCK": 1024})


@pytest.mark.slow
def test_the_norm_compiles():
    pytest.importorskip("triton")
    from llm_kernels.triton import norm

    pointers = dict.fromkeys(["out", "x", "residual"], "*bf16") | dict.fromkeys(["weight", "bias"], "*fp32")
    flags = {"CENTRED": True, "HAS_RESIDUAL": True, "WEIGHT_DIMS": 2, "BIAS_DIMS": 1}
    _compile(norm._norm_kernel, pointers, flags | {"ROWS": 2, "SIZE": 512}, floats=["eps"])


@pytest.mark.slow
def test_the_activations_compile():
    pytest.importorskip("triton")
    from llm_kernels.triton import activation

    pointers = dict.fromkeys(["out", "x", "gate_up"], "*bf16") | {"parameters": "*fp32"}
    for kind in activation._KINDS.values():
        _compile(activation._activation_kernel, pointers, {"KIND": kind, "BLOCK": 1024})
    for limit, alpha in ((None, None), (7.0, None), (7.0, 1.702)):
        gate = {"KIND": 0, "LIMIT": limit, "ALPHA": alpha, "BLOCK": 1024}
        _compile(activation._gated_kernel, pointers, gate)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [0, 8])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "sqrtsoftplus", "softmax_after", "sigmoid_after"])
def test_the_routing_compiles(scoring, groups):
    pytest.importorskip("triton")
    from llm_kernels.triton import routing

    pointers = {"logits": "*fp32", "bias": "*fp32", "weights": "*fp32", "ids": "*i64"}
    flags = {"SCORING": scoring, "HAS_BIAS": True, "RENORMALIZE": True, "BY_TOP2": True}
    sizes = {"GROUPS": groups, "TOP_GROUPS": groups // 2, "G_PAD": 8, "K": 8, "K_PAD": 8, "N_PAD": 256}
    floats = ["renormalize_eps", "scale"]
    _compile(routing._route_kernel, pointers, flags | sizes, floats=floats, num_warps=1)
