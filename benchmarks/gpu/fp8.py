"""Times linear layers with e4m3 weights on many tokens, and what quantizes their inputs.

Products as TFLOP/s beside bfloat16's, in CUDA graphs over more weights than the L2 cache holds; the ops that
quantize as bytes that they must move.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from linear import SHAPES, copies_of, time_us
from llm_kernels import ops
from llm_kernels.fp8_format import E4M3, num_groups

_CALLS_BYTES = 2e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One call: what, how, microseconds, and TFLOP/s of a product or TB/s of an op that quantizes."""

    what: str
    tokens: int
    how: str
    us: float
    rate: float


def room(tokens: int, size: int, blocks: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialised quantized activations."""
    scales = torch.empty(num_groups(size) if blocks else 1, tokens, device="cuda").t()
    return torch.empty(tokens, size, dtype=E4M3, device="cuda"), scales


def products(name: str, tokens: int) -> Iterator[Timing]:
    """bfloat16, then e4m3 with each layout of scales: the product alone, and with the quantization."""
    outputs, inputs = SHAPES[name]
    x_TI = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16)
    operations = 2.0 * tokens * outputs * inputs

    def timing(how: str, weights: list[torch.Tensor], call: Callable[[torch.Tensor], object]) -> Timing:
        calls = max(len(weights), min(12, int(_CALLS_BYTES / weights[0].nbytes)))
        us = time_us(lambda index: call(weights[index % len(weights)]), calls)
        return Timing(what=name, tokens=tokens, how=how, us=us, rate=operations / us / 1e6)

    wide = copies_of(outputs, inputs, torch.bfloat16)
    yield timing("bf16", wide, lambda weight_OI: F.linear(x_TI, weight_OI))
    del wide
    narrow = copies_of(outputs, inputs, E4M3)
    shapes = {"channel": (outputs,), "block": (num_groups(outputs), num_groups(inputs))}
    for kind, shape in shapes.items():
        scale = torch.rand(shape, device="cuda") * 1e-3
        values_TI, scales_TG = room(tokens, inputs, kind == "block")
        ops.quantize_fp8(values_TI, scales_TG, x_TI)
        yield timing(
            f"{kind} product",
            narrow,
            lambda weight_OI, v=values_TI, s=scales_TG, w=scale: ops.fp8_product(
                v, s, weight_OI, w, dtype=torch.bfloat16
            ),
        )
        yield timing(f"{kind} linear", narrow, lambda weight_OI, w=scale: ops.fp8_linear(x_TI, weight_OI, w))


def quantizations(size: int, tokens: int) -> Iterator[Timing]:
    """Each op that quantizes, with a scale a token and one a group."""
    x_TI, residual_TI = (torch.randn(tokens, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    gate_up_TF = torch.randn(tokens, 2 * size, device="cuda", dtype=torch.bfloat16)
    weight_I = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    for blocks in (False, True):
        values_TI, scales_TG = room(tokens, size, blocks)
        calls: dict[str, tuple[int, Callable[[int], object]]] = {
            "quantize": (3, lambda _, v=values_TI, s=scales_TG: ops.quantize_fp8(v, s, x_TI)),
            "add_norm": (
                7,
                lambda _, v=values_TI, s=scales_TG: ops.rms_norm_fp8(
                    v, s, x_TI, weight_I, 1e-6, residual_TI=residual_TI
                ),
            ),
            "gate": (5, lambda _, v=values_TI, s=scales_TG: ops.gated_activation_fp8(v, s, gate_up_TF)),
        }
        for name, (bytes_each, call) in calls.items():
            us = time_us(call, 8)
            yield Timing(
                what=f"{name} {size}",
                tokens=tokens,
                how="group" if blocks else "token",
                us=us,
                rate=tokens * size * bytes_each / us / 1e6,
            )


def main(arguments: list[str] | None = None) -> None:
    """Prints one line a product or op and number of tokens; `arguments` stand for the command line's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="8b qkv,8b o,8b gate_up,8b down")
    parser.add_argument("--tokens", default="128,256,512,2048,8192")
    parser.add_argument("--sizes", default="4096,12288", help="of the inputs that are quantized")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    found: list[Timing] = []
    counts = [int(tokens) for tokens in options.tokens.split(",")]
    for tokens in counts:
        rows = [list(products(name, tokens)) for name in options.shapes.split(",") if name]
        rows += [
            [row] for size in options.sizes.split(",") if size for row in quantizations(int(size), tokens)
        ]
        for row in rows:
            found += row
            unit = "TB/s" if row[0].how in ("token", "group") else "TFLOP/s"
            cells = "  ".join(f"{t.how} {t.us:.1f} us {t.rate:,.4g} {unit}" for t in row)
            print(f"{row[0].what:15} T={tokens:<5} {cells}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(timing) for timing in found], indent=1))


if __name__ == "__main__":
    main()
