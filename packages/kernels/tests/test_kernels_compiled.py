"""The Triton attention kernels compiled for sm_90 where there is no GPU: they fit in its shared memory."""

from __future__ import annotations

import pytest
import torch

SHARED_MEMORY_BYTES = 227 * 1024
NAMES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "head_size"), [(torch.bfloat16, 128), (torch.bfloat16, 256), (torch.float32, 64)]
)
@pytest.mark.parametrize("name", ["decode", "prefill"])
def test_attention_compiles_for_sm_90(name, dtype, head_size):
    triton = pytest.importorskip("triton")
    from llm_kernels.triton import attention, attention_kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(attention_kernels, f"{name}_kernel")
    if not hasattr(kernel, "arg_names") or not hasattr(kernel, "cache_key"):
        pytest.skip("the interpreter is on")
    tile = getattr(attention, f"{name}_tile")(dtype, head_size, 4)
    constants = {
        "GROUP": 4,
        "D": head_size,
        "D_PAD": head_size,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_SIZE": 16,
        "HAS_WINDOW": True,
        "HAS_SOFT_CAP": True,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
        **({"IS_SPLIT": True} if name == "decode" else {"BLOCK_Q": tile.block_m // 4}),
    }
    types = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    types |= dict.fromkeys(["out", "query", "key_cache", "value_cache"], NAMES[dtype])
    types |= dict.fromkeys(["context_lens", "block_tables", "cu_query_lens"], "*i32")
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
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert 0 < compiled.metadata.shared <= SHARED_MEMORY_BYTES
