"""The small Triton kernels of a step compiled for sm_90 where there is no GPU, with dependent launch."""

from __future__ import annotations

import pytest
import torch

NAMES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}
INTEGERS = {
    **dict.fromkeys(("positions", "slot_mapping", "seeds", "tokens", "rows", "totals"), "*i64"),
    **dict.fromkeys(("counts", "top_k"), "*i32"),
    "faults": "*u8",
}
COLUMNS = ("temperature", "top_p", "min_p", "thresholds", "tile_max", "tile_score", "row_max", "cuts")
FLOATS = dict.fromkeys((*COLUMNS, "cos_sin"), "*fp32")
DATA = (
    *("out", "x", "residual", "weight", "bias", "gate_up", "parameters", "logits", "maxima", "candidates"),
    *("query", "key", "value", "key_cache", "value_cache", "query_weight", "key_weight"),
    *("key_scale", "value_scale"),
)
ATTENTION_INPUT = {
    "HAS_NORM": True,
    "HAS_QUERY_WEIGHT": True,
    "HAS_KEY_WEIGHT": True,
    "INTERLEAVED": False,
    "HEADS": 8,
    "PARTS": 4,
    "HALF": 64,
    "REST": 0,
    "VALUE": 128,
    "IS_E4M3": False,
    "HAS_SCALES": False,
}
NORM = {"CENTRED": False, "HAS_RESIDUAL": True, "WEIGHT_DIMS": 1, "BIAS_DIMS": 0, "ROWS": 1, "SIZE": 4096}
TILES = {"HAS_ROWS": True, "TILE": 2048, "STRETCH": 256}
KERNELS = {
    "norm._norm_kernel": NORM,
    "attention_input._rotate_write_kernel": ATTENTION_INPUT,
    "rope._rotary_kernel": {"INTERLEAVED": True, "HEADS": 8, "HALF": 64},
    "activation._gated_kernel": {"KIND": 0, "LIMIT": None, "ALPHA": None, "BLOCK": 1024},
    "sampling._tile_best": {"HAS_THRESHOLDS": True, "FAST": True, "TILE": 2048},
    "sampling._row_token": {"HAS_THRESHOLDS": True, "FAST": True, "TILE": 2048, "TILES": 128},
    "sampling_filters._stretch_maxima": TILES,
    "sampling_filters._cuts": {"HAS_ROWS": True, "SPARE_BITS": 16, "BLOCK": 1024},
    "sampling_filters._gather": {**TILES, "CANDIDATES": 8192},
    "sampling_filters._select": {"HAS_ROWS": True, "CANDIDATES": 8192, "SPARE_BITS": 16, "BLOCK": 4096},
}
RANKS = {"TILE": 2048, "STRETCH": 256}
KERNELS |= {
    "sampling_ranks._tile_sums": {"HAS_TOP": True, **RANKS},
    "sampling_ranks._row_sums": {"HAS_TOP": True, "TILES": 128, "STRETCHES": 1024, "SPARE": 16},
    "sampling_ranks._gather_top": {"CANDIDATES": 4096, **RANKS},
    "sampling_ranks._take_top": {"CANDIDATES": 4096, "BLOCK": 1024},
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(NAMES), ids=str)
@pytest.mark.parametrize("name", list(KERNELS))
def test_compiles_for_sm_90(name, dtype):
    triton = pytest.importorskip("triton")
    from importlib import import_module

    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, function = name.split(".")
    kernel = getattr(import_module(f"llm_kernels.triton.{module}"), function)
    if not hasattr(kernel, "cache_key"):
        pytest.skip("the interpreter is on")
    constants = {**KERNELS[name], "PDL": True}
    for bits in {"SPARE", "SPARE_BITS"} & constants.keys():
        constants[bits] = 0 if dtype == torch.float32 else 16
    types = dict.fromkeys(kernel.arg_names, "i32") | INTEGERS | FLOATS | dict.fromkeys(DATA, NAMES[dtype])
    if module == "sampling_ranks":
        types |= {"candidates": "*i64", "ranks": "*i64", "top_ids": "*i64", "tile_above": "*i32"}
        types |= dict.fromkeys(("tile_sum", "log_sums", "logprobs", "top_logprobs"), "*fp32")
    types |= {"eps": "fp32", "log_vocab": "fp32"} | dict.fromkeys(constants, "constexpr")
    signature = {argument: types[argument] for argument in kernel.arg_names}
    aligned = [i for i, (k, v) in enumerate(signature.items()) if v.startswith("*") or "stride_" in k]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(k),): v for k, v in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"launch_pdl": True, "num_warps": 16 if function == "_select" else 4}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert "griddepcontrol.wait" in compiled.asm["ptx"]
    assert "griddepcontrol.launch_dependents" in compiled.asm["ptx"]
