"""Times a decoder layer of Qwen3-8B with e4m3 weights as decode steps run it: all kernels, in a CUDA graph.

python3 benchmarks/gpu/fp8_layer.py --rows 1 64 96 128 192 256
python3 benchmarks/gpu/fp8_layer.py --rows 96 128 --without-panels
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import torch
from llm_kernels import ops
from llm_kernels.cuda import fp8_linear, linear
from llm_kernels.fp8_format import E4M3

WIDTH, INNER, HEADS, KV_HEADS, HEAD_SIZE = 4096, 12288, 32, 8, 128
SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (24576, 4096), "down": (4096, 12288)}
# More weights than the L2 cache holds.
LAYERS, ROUNDS, NUM_BLOCKS = 8, 7, 20_000


class Layers:
    """Random weights of some layers, and their run over rows of one length."""

    def __init__(self) -> None:
        self._weights = [
            {name: (torch.randn(shape, device="cuda") * 64).to(E4M3) for name, shape in SHAPES.items()}
            for _ in range(LAYERS)
        ]
        self._scales = {name: torch.rand(shape[0], device="cuda") * 1e-4 for name, shape in SHAPES.items()}
        self._norm = torch.ones(WIDTH, device="cuda", dtype=torch.bfloat16)
        self._head_norm = torch.ones(HEAD_SIZE, device="cuda", dtype=torch.bfloat16)
        self._cos_sin = torch.randn(4096, HEAD_SIZE, device="cuda", dtype=torch.bfloat16)
        shape = (NUM_BLOCKS, 16, KV_HEADS, HEAD_SIZE)
        self._key, self._value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def microseconds(self, rows: int, context: int) -> float:
        """Of a layer: the median of graph replays of all layers."""
        width = -(-context // 16)
        tables = (
            torch.randperm(NUM_BLOCKS, device="cuda").int()[: rows * width].view(rows, width).contiguous()
        )
        metadata = ops.AttentionMetadata(
            cu_query_lens=torch.arange(rows + 1, dtype=torch.int32, device="cuda"),
            context_lens=torch.full((rows,), context, dtype=torch.int32, device="cuda"),
            block_tables=tables,
            slot_mapping=tables[:, -1].long() * 16 + (context - 1) % 16,
            positions=torch.full((rows,), context - 1, dtype=torch.int64, device="cuda"),
            num_decodes=rows,
            max_query_len=1,
            max_context_len=context,
        )
        first_TE = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)

        def run() -> None:
            x_TE, sum_TE = first_TE.clone(), first_TE.clone()
            for weights in self._weights:
                x_TE = self._layer(weights, x_TE, sum_TE, metadata)

        return replayed(run) / LAYERS

    def _layer(
        self,
        weights: dict[str, torch.Tensor],
        x_TE: torch.Tensor,
        sum_TE: torch.Tensor,
        metadata: ops.AttentionMetadata,
    ) -> torch.Tensor:
        rows = x_TE.shape[0]
        least = ops.fp8_quantizes_from(weights["qkv"], self._scales["qkv"], torch.bfloat16)
        is_narrow = least is not None and rows >= least
        if is_narrow:
            qkv_TF = self._product(weights, "qkv", self._normed(x_TE, sum_TE))
        else:
            ops.fused_add_rms_norm(x_TE, sum_TE, self._norm, 1e-6)
            qkv_TF = self._linear(weights, "qkv", x_TE)
        x_TE = self._linear(weights, "o", self._attended(qkv_TF, metadata))
        if not is_narrow:
            ops.fused_add_rms_norm(x_TE, sum_TE, self._norm, 1e-6)
            scale = self._scales["gate_up"]
            inner_TI = ops.gated_linear(x_TE, weights["gate_up"], "silu", weight_scale=scale)
            return self._linear(weights, "down", inner_TI)
        room = empty(rows, INNER)
        narrow = self._normed(x_TE, sum_TE)
        ops.gated_activation_fp8(*room, self._product(weights, "gate_up", narrow))
        return self._product(weights, "down", room)

    def _attended(self, qkv_TF: torch.Tensor, metadata: ops.AttentionMetadata) -> torch.Tensor:
        kv_size = KV_HEADS * HEAD_SIZE
        parts = qkv_TF.split_with_sizes((WIDTH, kv_size, kv_size), dim=1)
        query, key, value = (part.view(part.shape[0], -1, HEAD_SIZE) for part in parts)
        ops.rotate_write_kv(
            query,
            key,
            value,
            self._key,
            self._value,
            metadata.positions,
            metadata.slot_mapping,
            self._cos_sin,
            query_weight=self._head_norm,
            key_weight=self._head_norm,
            eps=1e-6,
        )
        out_THD = torch.empty(query.shape, device="cuda", dtype=torch.bfloat16)
        ops.paged_attention(out_THD, query, self._key, self._value, metadata, scale=HEAD_SIZE**-0.5)
        return out_THD.view(-1, WIDTH)

    def _normed(self, x_TE: torch.Tensor, sum_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        room = empty(x_TE.shape[0], WIDTH)
        ops.rms_norm_fp8(*room, x_TE, self._norm, 1e-6, residual_TI=sum_TE)
        return room

    def _linear(self, weights: dict[str, torch.Tensor], name: str, x_TI: torch.Tensor) -> torch.Tensor:
        return ops.fp8_linear(x_TI, weights[name], self._scales[name])

    def _product(
        self, weights: dict[str, torch.Tensor], name: str, narrow: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        return ops.fp8_product(*narrow, weights[name], self._scales[name], dtype=torch.bfloat16)


def empty(rows: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for quantized rows with a scale each."""
    values = torch.empty(rows, size, dtype=E4M3, device="cuda")
    return values, torch.empty(1, rows, device="cuda").t()


def replayed(run: Callable[[], None]) -> float:
    """Median microseconds of the replay of a graph of `run`."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    graph.replay()
    times: list[float] = []
    for _ in range(ROUNDS):
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return statistics.median(times)


def without_panels() -> ExitStack:
    """Inside, products take the kernels that they took before there were panels."""
    stack = ExitStack()
    for module, name in ((fp8_linear, "panel_plan"), (fp8_linear, "few_plan"), (linear, "few_plan")):
        stack.enter_context(patch.object(module, name, lambda *_, **__: None))
    return stack


def main() -> None:
    """Prints a line a number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 8, 32, 64, 96, 128, 160, 192, 224, 256])
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--without-panels", action="store_true", help="both ways, one after the other")
    options = parser.parse_args()
    torch.manual_seed(0)
    layers = Layers()
    for rows in options.rows:
        cells = [f"{layers.microseconds(rows, options.context):7.1f} us"]
        if options.without_panels:
            with without_panels():
                cells.append(f"without panels {layers.microseconds(rows, options.context):7.1f} us")
        print(f"{rows:4} rows at {options.context}: " + ", ".join(cells), flush=True)


if __name__ == "__main__":
    main()
