"""A process that multiplies on a GPU until its standard input ends: tests take turns with it.

It runs the kernels that the tests look at: others were not seen to disturb them.
"""

import sys
import threading

import torch
from llm_kernels.cuda.linear import streamed
from llm_kernels.fp8_format import E4M3
from llm_kernels.triton.quantize_fp8 import quantize_fp8

TOKENS, SIZE = 64, 1024


def main() -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    x = torch.randn(TOKENS, SIZE, device="cuda").bfloat16()
    weight = torch.randn(SIZE, SIZE, device="cuda").to(E4M3)
    scale, token_scale = torch.ones(SIZE, device="cuda"), torch.empty(TOKENS, 1, device="cuda")
    values, out = torch.empty_like(x, dtype=E4M3), torch.empty_like(x)
    print("ready", flush=True)  # noqa: T201
    while not stop.is_set():
        quantize_fp8(values, token_scale, x, None)
        streamed(out, values, weight, None, scale, 0, token_scale=token_scale)
        torch.cuda.synchronize()


main()
