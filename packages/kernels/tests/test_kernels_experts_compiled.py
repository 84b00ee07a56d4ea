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
    options = {"num_warps": num_warps, "num_stages": num_stages, "launch_pdl": constants.get("PDL", False)}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


POINTERS = {
    "pair_weights": "*fp32",
    "x_scales": "*fp32",
    "pairs": "*i32",
    "block_experts": "*i32",
    "ids": "*i64",
}
UP = {
    "TOP_K": 8,
    "GATED": True,
    "KIND": 0,
    "LIMIT": None,
    "ALPHA": None,
    "HAS_BIAS": True,
    "SCALE_INPUT": False,
}
DOWN = {"SORTED_ROWS": True, "HAS_BIAS": True, "SCALED": True}


def _names(kernel, dtype, *extra):
    names = (
        dict.fromkeys(["inner", "out", "x", "weight", "bias"], NAMES[dtype])
        | {"scale": "*fp32"}
        | POINTERS
        | dict(extra)
    )
    return {name: text for name, text in names.items() if name in kernel.arg_names}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(NAMES), ids=str)
@pytest.mark.parametrize("num_pairs", [64, 512, 2048, 4000, 64000])
def test_the_grouped_products_fit(dtype, num_pairs):
    pytest.importorskip("triton")
    from llm_kernels.triton import experts_kernels
    from llm_kernels.triton.experts_tiles import expert_tiles

    tiles = expert_tiles(dtype, num_pairs, 128)
    for kernel, tile, options in (
        (experts_kernels.up_kernel, tiles.up, UP),
        (experts_kernels.grouped_gemm_kernel, tiles.down, DOWN),
    ):
        described = {}
        if tile.descriptor:
            element = NAMES[dtype][1:]
            described = {"weight": f"tensordesc<{element}[{tile.block_n},{tile.block_k}]>"}
            if "SORTED_ROWS" in options:
                described["x"] = f"tensordesc<{element}[{tiles.block_m},{tile.block_k}]>"
        constants = options | {
            "EVEN_K": True,
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_K": tile.block_k,
            "GROUP_M": tile.group_m,
            "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
            "DESCRIPTOR": tile.descriptor,
            "SCALES": 0,
            "NARROW": False,
            "PDL": True,
        }
        pointers = _names(kernel, dtype, *described.items())
        compiled = _compile(kernel, pointers, constants, num_warps=tile.num_warps, num_stages=tile.num_stages)
        assert 0 < compiled.metadata.shared <= SHARED_MEMORY_BYTES
        assert "mma" in compiled.asm["ptx"] or dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("scales", [1, 2])
@pytest.mark.parametrize("num_pairs", [64, 64000])
def test_the_products_of_e4m3_weights_fit(scales, num_pairs):
    pytest.importorskip("triton")
    from llm_kernels.triton import experts_kernels
    from llm_kernels.triton.experts_tiles import expert_tiles

    tiles = expert_tiles(torch.bfloat16, num_pairs, 128, is_quantized=True)
    for kernel, tile, options in (
        (experts_kernels.up_kernel, tiles.up, UP),
        (experts_kernels.grouped_gemm_kernel, tiles.down, DOWN),
    ):
        rows = "fp8e4nv" if tiles.narrow else "bf16"
        described = {"x": f"*{rows}", "weight": f"tensordesc<fp8e4nv[{tile.block_n},{tile.block_k}]>"}
        if "SORTED_ROWS" in options:
            described["x"] = f"tensordesc<{rows}[{tiles.block_m},{tile.block_k}]>"
        constants = options | {
            "EVEN_K": True,
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tile.block_n,
            "BLOCK_K": tile.block_k,
            "GROUP_M": tile.group_m,
            "PRECISION": "tf32",
            "DESCRIPTOR": True,
            "SCALES": scales,
            "NARROW": tiles.narrow,
            "PDL": True,
        }
        pointers = _names(kernel, torch.bfloat16, *described.items())
        compiled = _compile(kernel, pointers, constants, num_warps=tile.num_warps, num_stages=tile.num_stages)
        assert 0 < compiled.metadata.shared <= SHARED_MEMORY_BYTES
        assert ("wgmma" in compiled.asm["ptx"]) == tiles.narrow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one_pass", "chunks", "scales"), [(False, 1, 0), (True, 4, 0), (True, 3, 1), (True, 2, 2)]
)
def test_the_products_of_a_few_tokens_compile(one_pass, chunks, scales):
    pytest.importorskip("triton")
    from llm_kernels.triton import experts_token_kernels as kernels

    flags = {"SCALES": scales, "PDL": True}
    up, down = kernels.token_up_kernel, kernels.token_down_kernel
    weight = ("weight", "*fp8e4nv" if scales else "*bf16")
    _compile(
        up,
        _names(up, torch.bfloat16, weight),
        UP | flags | {"ONE_PASS": one_pass, "BLOCK_I": 4, "BLOCK_K": 2048},
    )
    sizes = {"TOP_K": 8, "ZERO_EXPERTS": 4, "BLOCK_E": 2, "K_PAD": 8, "BLOCK_I": 256, "CHUNKS": chunks}
    pointers = _names(down, torch.bfloat16, weight)
    _compile(down, pointers, flags | sizes | {"HAS_BIAS": True, "SCALED": True}, num_warps=8)


@pytest.mark.slow
@pytest.mark.parametrize("num_experts", [8, 128, 256])
def test_the_sorts_compile(num_experts):
    pytest.importorskip("triton")
    from llm_kernels.triton import experts_sort_kernels as kernels

    pointers = {"ids": "*i64"} | dict.fromkeys(
        ["pairs", "block_experts", "counts", "offsets", "totals"], "*i32"
    )
    flags = {"N_PAD": 2 * num_experts, "PDL": True}
    for kernel, constants in (
        (kernels.sort_kernel, flags | {"P_PAD": 4096, "BLOCK_M": 16}),
        (kernels.count_kernel, flags | {"CHUNK": 128}),
        (kernels.offset_kernel, {"LANES": 1024, "PDL": True}),
        (kernels.scatter_kernel, flags | {"CHUNK": 128, "BLOCK_M": 128}),
    ):
        own = {name: text for name, text in pointers.items() if name in kernel.arg_names}
        compiled = _compile(kernel, own, constants, num_warps=8)
        assert compiled.metadata.shared <= SHARED_MEMORY_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("zero_experts", [0, 4])
def test_the_combination_compiles(zero_experts):
    pytest.importorskip("triton")
    from llm_kernels.triton.experts_kernels import combine_kernel

    pointers = dict.fromkeys(["out", "pair_outputs", "x"], "*bf16") | {"ids": "*i64", "pair_weights": "*fp32"}
    constants = {"ZERO_EXPERTS": zero_experts, "K": 8, "BLOCK": 1024, "PDL": True}
    _compile(combine_kernel, pointers, constants)


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
    _compile(routing._route_kernel, pointers, flags | sizes | {"PDL": True}, floats=floats, num_warps=1)
