"""``llm-stack plan``: what a model will take and do on a GPU, without one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import msgspec
from llm_engine.gpus import Gpu, find_gpu, known_gpus
from llm_engine.options import EngineOptions

from llm_stack_server.cli.flags import add_flags, from_flags

if TYPE_CHECKING:
    from llm_engine.capacity import CapacityPlan

# What changes the answer; the engine's other options do not.
_FLAGS = {
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "max_model_len",
    "block_size",
    "state_interval",
    "tensor_parallel_size",
    "gpu_memory_fraction",
    "kv_cache_bytes",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "graphs",
    "graph_memory_gib",
    "offline",
    "allow_pickle",
}
_GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, the GPU and the flags of the engine that matter."""
    parser.add_argument("model", help="an alias, a folder or a hub id; weights need not be there")
    parser.add_argument(
        "--gpu", default="h200", metavar="NAME", help=f"one of {', '.join(known_gpus())} (default: h200)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    others = {field.name for field in fields(EngineOptions)} - _FLAGS
    add_flags(parser, EngineOptions, skip=others)


def run(parsed: argparse.Namespace) -> int:
    """Print the plan."""
    gpu = find_gpu(parsed.gpu)
    names = [name for name in vars(parsed) if name in _FLAGS or name == "model"]
    options = from_flags(EngineOptions, argparse.Namespace(**{name: getattr(parsed, name) for name in names}))
    from llm_engine.capacity import predict_capacity

    plan = predict_capacity(options, gpu)
    if parsed.json:
        sys.stdout.write(json.dumps(_as_json(plan, gpu)) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in _lines(plan, gpu, options.tensor_parallel_size))
    return 0


def _as_json(plan: CapacityPlan, gpu: Gpu) -> dict[str, Any]:
    found = {field.name: getattr(plan, field.name) for field in fields(plan)}
    memory = msgspec.structs.asdict(plan.memory) | {"kv_bytes": plan.num_blocks * plan.page_bytes}
    floors = [asdict(floor) for floor in plan.floors]
    return {"gpu": asdict(gpu), **found, "memory": memory, "floors": floors}


def _lines(plan: CapacityPlan, gpu: Gpu, num_ranks: int) -> Iterable[str]:
    memory = plan.memory
    many = f", {num_ranks} of them; bytes are of each" if num_ranks > 1 else ""
    yield f"{plan.architecture}, {plan.dtype}, on {gpu.title}{many}"
    yield ""
    kv_bytes = plan.num_blocks * plan.page_bytes
    rows = (
        ("weights", memory.weights_bytes),
        ("KV cache", kv_bytes),
        ("activations of a step", memory.step_bytes),
        ("captured graphs", memory.graphs_bytes),
        ("slot tables", memory.tables_bytes),
        ("driver and libraries", memory.other_bytes),
        ("reserve", memory.reserve_bytes),
        ("left to others", memory.device_bytes - memory.used_bytes - kv_bytes),
        ("the device", memory.device_bytes),
    )
    yield from (f"{name:<22}{num_bytes / _GIB:9.2f} GiB" for name, num_bytes in rows)
    yield ""
    yield f"{'a token adds':<22}{plan.kv_bytes_per_token:9,} bytes of cache"
    yield f"{'longest context':<22}{plan.max_model_len:9,} tokens"
    for context, sequences in plan.concurrency.items():
        yield f"{'  sequences at a time':<22}{sequences:9,} of {context:,} tokens"
    yield ""
    source = "as measured" if gpu.is_measured else "by the maker's figures"
    yield f"fastest decode that memory and arithmetic allow, {source}, communication not counted:"
    for floor in plan.floors:
        yield (
            f"{floor.rows:6} x {floor.context:,} tokens{floor.step_ms:9.2f} ms a step"
            f"{floor.tokens_per_s:11,.0f} tokens/s"
        )
