"""What the host cache saves: the time to the first token of a long prompt, computed and brought back.

The device's cache holds two of the prompts; the others push the first one out to the host, and it is asked
again. Run it on a GPU (docs/performance.md has the figures):

    python benchmarks/host_cache.py --shape qwen3-8b --tokens 16384
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from llm_engine import LLM, SamplingParams
from shapes import SHAPES, write_shape

ONE_TOKEN = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False, temperature=0.0)


def kv_bytes_per_token(shape: str) -> int:
    """Bytes of keys and values of one token over all layers, in bfloat16."""
    config = SHAPES[shape]
    heads, size = config["num_key_value_heads"], config["head_dim"]
    layers = config["num_hidden_layers"]
    return int(str(layers)) * 2 * int(str(heads)) * int(str(size)) * 2


def seconds_of(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token of a prompt, and how many of its tokens were cached."""
    started = time.perf_counter()
    (output,) = llm.generate([prompt], ONE_TOKEN, progress=False)
    return time.perf_counter() - started, output.num_cached_tokens


def main() -> None:
    """Runs the prompts on one engine and prints the times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    bytes_per_prompt = args.tokens * kv_bytes_per_token(args.shape)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 1000, args.tokens).tolist() for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(
            str(write_shape(args.shape, Path(folder))),
            load_format="dummy",
            dtype="bfloat16",
            progress=False,
            max_model_len=args.tokens + 64,
            kv_cache_bytes=int(2.2 * bytes_per_prompt),
            host_cache_gib=4 * bytes_per_prompt / 2**30,
        )
        computed = [seconds_of(llm, prompt)[0] for prompt in prompts]
        brought = []
        for _ in range(args.rounds):
            for prompt in prompts:
                seconds, cached = seconds_of(llm, prompt)
                assert cached >= args.tokens - 32, cached
                brought.append(seconds)
        llm.shutdown()
    figures = {
        "shape": args.shape,
        "tokens": args.tokens,
        "computed_s": computed,
        "brought_back_s": brought,
        "ratio": min(computed[1:]) / statistics.median(brought),
        "bytes": bytes_per_prompt,
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
