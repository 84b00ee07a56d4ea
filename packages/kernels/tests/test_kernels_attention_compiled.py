"""The Triton attention kernels compiled for sm_90 where there is no GPU: they fit in its shared memory."""

from __future__ import annotations

import pytest
import torch

SHARED_MEMORY_BYTES = 227 * 1024
NAMES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}
PLAIN = {
    "HAS_WINDOW": False,
    "HAS_CHUNK": False,
    "HAS_SOFT_CAP": False,
    "HAS_SINKS": False,
    "HAS_ALIBI": False,
}
FLAGS = {
    "plain": PLAIN,
    "gpt-oss": {**PLAIN, "HAS_WINDOW": True, "HAS_SINKS": True},
    "all": dict.fromkeys(PLAIN, True),
}
LENGTHS = (
    "context_lens",
    "block_tables",
    "cu_query_lens",
    "prefix_lens",
    "member_rows",
    "cu_members",
    "group_lens",
)
POINTERS = dict.fromkeys(LENGTHS, "*i32") | dict.fromkeys(("slopes", "key_scale", "value_scale"), "*fp32")
EARLY = {"PDL": True}


def _compile(kernel, dtype, constants, tile):
    """The kernel with all strides multiples of 16, as they are in use."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if not hasattr(kernel, "arg_names") or not hasattr(kernel, "cache_key"):
        pytest.skip("the interpreter is on")
    types = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    data = ["out", "query", "key_cache", "value_cache", "latent_cache", "sinks"]
    types |= dict.fromkeys(data, NAMES[dtype]) | POINTERS
    types |= {"partial": "*fp32", "partial_state": "*fp32", "scale": "fp32", "soft_cap": "fp32"}
    signature = {argument: types[argument] for argument in kernel.arg_names}
    aligned = [i for i, (k, v) in enumerate(signature.items()) if v.startswith("*") or "stride" in k]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(k),): v for k, v in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    if constants.get("PDL"):
        options["launch_pdl"] = True
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "head_size", "value_size", "flags"),
    [
        (torch.bfloat16, 128, 128, "plain"),
        (torch.bfloat16, 64, 64, "gpt-oss"),
        (torch.bfloat16, 256, 256, "all"),
        (torch.bfloat16, 192, 128, "plain"),
        (torch.float32, 64, 64, "all"),
    ],
)
@pytest.mark.parametrize("name", ["decode", "prefix", "prefill"])
def test_attention_compiles_for_sm_90(name, dtype, head_size, value_size, flags):
    pytest.importorskip("triton")
    from llm_kernels.triton import attention, attention_decode, attention_decode_kernels, attention_kernels
    from llm_kernels.triton.attention_arguments import padded, precision

    widest = max(head_size, value_size)
    tile = {
        "decode": attention_decode.decode_tile(dtype, widest, 4, 8),
        "prefix": attention_decode.prefix_tile(dtype, widest, 4, 128),
        "prefill": attention.prefill_tile(dtype, widest, 4),
    }[name]
    constants = {
        "GROUP": 4,
        "D": head_size,
        "D_PAD": padded(head_size),
        "V": value_size,
        "V_PAD": padded(value_size),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_SIZE": 16,
        **FLAGS[flags],
        "HAS_CACHE_SCALES": flags == "all",
        "PRECISION": precision(dtype),
    }
    if name == "decode":
        constants |= {"IS_SPLIT": True, "HAS_PREFIX": True, "LEAST_BLOCKS": 2, **EARLY}
    elif name == "prefix":
        constants |= {"BLOCK_Q": tile.block_m // 4, "GROUPS": 8, **EARLY}
        for flag in ("HAS_WINDOW", "HAS_CHUNK", "HAS_SINKS"):
            del constants[flag]
    else:
        constants |= {"BLOCK_Q": tile.block_m // 4, "IS_PAGED": True, "IS_CAUSAL": True}
    module = attention_kernels if name == "prefill" else attention_decode_kernels
    compiled = _compile(getattr(module, f"{name}_kernel"), dtype, constants, tile)
    assert 0 < compiled.metadata.shared <= SHARED_MEMORY_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["plain", "all"])
def test_packed_attention_compiles_for_sm_90(flags):
    pytest.importorskip("triton")
    from llm_kernels.triton import attention, attention_kernels

    tile = attention.prefill_tile(torch.bfloat16, 64, 1)
    constants = {
        "GROUP": 1,
        "D": 64,
        "D_PAD": 64,
        "V": 64,
        "V_PAD": 64,
        "BLOCK_Q": tile.block_m,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_SIZE": 1,
        **FLAGS[flags],
        "HAS_CHUNK": False,
        "HAS_SINKS": False,
        "HAS_CACHE_SCALES": False,
        "PRECISION": "tf32",
        "IS_PAGED": False,
        "IS_CAUSAL": False,
    }
    compiled = _compile(attention_kernels.prefill_kernel, torch.bfloat16, constants, tile)
    assert 0 < compiled.metadata.shared <= SHARED_MEMORY_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "num_heads"), [(torch.bfloat16, 16), (torch.bfloat16, 128), (torch.float32, 16)]
)
@pytest.mark.parametrize("name", ["decode", "prefill"])
def test_latent_attention_compiles_for_sm_90(name, dtype, num_heads):
    pytest.importorskip("triton")
    from llm_kernels.triton import latent_attention, latent_attention_kernels
    from llm_kernels.triton.attention_arguments import precision

    if name == "decode":
        tile = latent_attention.latent_decode_tile(dtype, num_heads)
    else:
        tile = latent_attention.latent_prefill_tile(dtype)
    constants = {
        "H": num_heads,
        "R": 512,
        "R_PAD": 512,
        "P": 64,
        "P_PAD": 64,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_SIZE": 64,
        "PRECISION": precision(dtype),
        **({"IS_SPLIT": True, "LEAST_BLOCKS": 4, **EARLY} if name == "decode" else {}),
    }
    kernel = getattr(latent_attention_kernels, f"latent_{name}_kernel")
    compiled = _compile(kernel, dtype, constants, tile)
    assert 0 < compiled.metadata.shared <= SHARED_MEMORY_BYTES


@pytest.mark.slow
def test_combination_compiles_for_sm_90():
    pytest.importorskip("triton")
    from llm_kernels.triton import attention_decode_kernels
    from llm_kernels.triton.attention_arguments import Tile

    constants = {
        "V": 128,
        "BLOCK_V": 128,
        "PARTS": 64,
        "HAS_WINDOW": True,
        "HAS_CHUNK": True,
        "HAS_PREFIX": True,
        **EARLY,
    }
    tile = Tile(block_m=16, block_n=64, num_warps=4, num_stages=3)
    compiled = _compile(attention_decode_kernels.combine_kernel, torch.bfloat16, constants, tile)
    assert compiled.metadata.shared <= SHARED_MEMORY_BYTES
