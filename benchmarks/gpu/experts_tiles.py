"""Checks and times candidates for the tiles of the expert kernels; prints a line a candidate.

python3 benchmarks/gpu/experts_tiles.py --tokens 64           # times
python3 benchmarks/gpu/experts_tiles.py --tokens 64 --check   # error against the torch back end, and compiles

A candidate is written 128x64,8,3,d: block_n x block_k, warps, stages, d where the bulk copy engine reads the
weights, g16 for group_m = 16.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from experts import CALLS, SIZES, Problem, microseconds, mixture, problem
from llm_kernels import ops
from llm_kernels.triton import experts
from llm_kernels.triton.experts_sort import Blocks, sort_by_expert
from llm_kernels.triton.experts_tiles import ExpertTiles, Tile, TokenTiles

# Mean pairs an expert up to which they apply: rows a block, tiles of up, tiles of down.
NARROW = (
    128,
    "128x128,8,3,d 128x128,8,4,d 64x128,8,4,d 128x64,8,5,d 64x128,4,4,d",
    "256x128,8,3,d 256x128,8,4,d 128x128,8,4,d 128x128,4,3,d 256x128,8,3,d,g4 256x64,8,4,d",
)
"""The same for e4m3 weights and rows."""
CANDIDATES: tuple[tuple[float, list[tuple[int, str, str]]], ...] = (
    (
        12,
        [
            (
                16,
                "64x128,4,4,d 64x128,4,3,d 32x128,4,4,d 32x256,4,3,d 64x256,4,2,d 64x128,4,6,d",
                "64x128,4,4,d 128x128,4,3,d 128x64,4,4,d 64x256,4,3,d 128x128,4,4,d",
            )
        ],
    ),
    (
        24,
        [
            (
                32,
                "64x128,4,4,d 64x128,4,3,d 64x256,4,2,d 64x128,8,3,d 32x256,4,2,d",
                "64x128,4,4,d 128x128,4,3,d 128x64,4,4,d 128x64,4,5,d 64x256,4,2,d",
            )
        ],
    ),
    (
        100,
        [
            (32, "64x128,4,3,d 64x128,8,3,d 128x64,8,3,d", "128x64,4,4,d 128x128,4,3,d"),
            (
                64,
                "64x64,4,4,d 64x64,4,3,d 64x128,4,2,d 128x64,8,3,d 64x64,8,4,d",
                "128x64,4,4,d 128x64,4,3,d 256x64,8,4,d 256x64,8,3,d",
            ),
            (128, "128x64,8,4,d 64x64,8,3,d", "256x64,8,4,d 128x64,8,3,d"),
        ],
    ),
    (
        float("inf"),
        [
            (
                128,
                "128x64,8,4,d 128x64,8,3,d 128x64,8,4,d,g16 64x64,8,3,d 64x64,4,3,d 128x64,8,4,d,g32",
                "256x64,8,4,d 256x64,8,4,d,g2 256x64,8,4,d,g1 128x64,8,3,d 128x64,4,3,d 128x64,8,2,d",
            )
        ],
    ),
)
# Weights in flight and warps, of up and of down.
TOKEN_CANDIDATES = (
    "16384,4,16384,4 4096,2,16384,4 8192,2,16384,4 32768,8,16384,4 16384,4,8192,4 16384,4,16384,8 "
    "16384,4,32768,8 16384,4,16384,2 16384,4,32768,4"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One product under one tile, or both products for a few tokens."""

    kind: str
    block_m: int
    text: str

    def tile(self) -> Tile:
        """Out of its text."""
        shape, warps, stages, *flags = self.text.split(",")
        block_n, block_k = map(int, shape.split("x"))
        return Tile(
            block_n=block_n,
            block_k=block_k,
            num_warps=int(warps),
            num_stages=int(stages),
            descriptor="d" in flags,
            group_m=next((int(flag[1:]) for flag in flags if flag[0] == "g"), 8),
        )

    def token_tiles(self) -> TokenTiles:
        """Out of its text."""
        up_weights, up_warps, down_weights, down_warps = map(int, self.text.split(","))
        return TokenTiles(
            up_weights=up_weights, up_warps=up_warps, down_weights=down_weights, down_warps=down_warps
        )


def candidates(num_tokens: int, mean: float, *, is_narrow: bool) -> Iterator[Candidate]:
    """Those for so many tokens and pairs an expert; `is_narrow`: rows are quantized too."""
    if num_tokens <= 4:
        for text in TOKEN_CANDIDATES.split():
            yield Candidate(kind="token", block_m=1, text=text)
    if num_tokens == 1:
        return
    chosen = [NARROW] if is_narrow else next(found for most, found in CANDIDATES if mean <= most)
    for block_m, ups, downs in chosen:
        for kind, texts in (("up", ups), ("down", downs)):
            for text in texts.split():
                yield Candidate(kind=kind, block_m=block_m, text=text)


def has_narrow_rows(given: Problem) -> bool:
    """Whether e4m3 rows multiply e4m3 weights: where the experts have many."""
    return given.mlp.up_scale is not None and given.ids[0].numel() > 60 * given.mlp.down.shape[0]


def output(given: Problem, candidate: Candidate, call: int) -> torch.Tensor:
    """The mixture's output where the candidate does its part."""
    out = torch.empty_like(given.inputs[call])
    arguments = (out, given.inputs[call], given.weights[call], given.ids[call], given.mlp)
    if candidate.kind == "token":
        experts.moe_by_token(*arguments, candidate.token_tiles())
    else:
        tile, plain = candidate.tile(), Tile(block_n=64, block_k=64, num_warps=4, num_stages=3)
        is_up = candidate.kind == "up"
        up, down = (tile, plain) if is_up else (plain, tile)
        tiles = ExpertTiles(block_m=candidate.block_m, up=up, down=down, narrow=has_narrow_rows(given))
        experts.moe_by_expert(*arguments, tiles)
    return out


def check(given: Problem, wanted: list[Candidate]) -> None:
    """Prints each one's error against the reference."""
    expected = torch.empty_like(given.inputs[0])
    with ops.use_backend("moe", "torch"):
        mixture(given, 0, expected)
    for candidate in wanted:
        try:
            got = output(given, candidate, 0).float()
        except Exception as error:  # noqa: BLE001 - a tile may not fit; the table says so
            print(f"{candidate} failed: {str(error)[:90]}", flush=True)
            continue
        error = float((got - expected.float()).norm() / expected.float().norm())
        if not error < (0.08 if has_narrow_rows(given) else 1e-2):
            print(f"{candidate} WRONG: {error:.1e}", flush=True)
    print(f"T {given.inputs.shape[1]}: {len(wanted)} candidates checked", flush=True)


def time(given: Problem, wanted: list[Candidate]) -> None:
    """Prints each one's time, and what it makes of the bandwidth and the rate; best last."""
    mlp, top_k, num_experts = given.mlp, given.ids.shape[2], given.mlp.down.shape[0]
    num_bytes, operations = given.bytes_and_operations(0)
    sorted_by: dict[int, list[Blocks]] = {}
    lines = []
    for candidate in wanted:
        block_m = candidate.block_m
        if block_m not in sorted_by:
            sorted_by[block_m] = [sort_by_expert(ids.view(-1), num_experts, block_m) for ids in given.ids]
        try:
            took = _time_one(given, candidate, sorted_by[block_m], top_k)
        except Exception as error:  # noqa: BLE001 - a tile may not fit; the table says so
            print(f"{candidate} failed: {str(error)[:90]}", flush=True)
            continue
        parts = {
            "up": mlp.up.shape[1],
            "down": mlp.down.shape[2],
            "token": mlp.up.shape[1] + mlp.down.shape[2],
        }
        share = parts[candidate.kind] / parts["token"]
        rates = f"{share * num_bytes / took / 1e6:5.2f} TB/s {share * operations / took / 1e6:4.0f} TFLOP/s"
        name = f"T {given.inputs.shape[1]:5d} {candidate.kind:5s} {block_m:3d} x {candidate.text:26s}"
        lines.append((candidate.kind, -took, f"{name} {took:8.1f} us {rates}"))
    print("\n".join(line for *_, line in sorted(lines)), flush=True)


def _time_one(given: Problem, candidate: Candidate, blocks: list[Blocks], top_k: int) -> float:
    mlp = given.mlp
    if candidate.kind == "token":
        return microseconds(lambda i: output(given, candidate, i))
    tile, is_narrow = candidate.tile(), has_narrow_rows(given)
    if candidate.kind == "up":
        return microseconds(
            lambda i: experts.multiply_up(
                given.inputs[i], given.weights[i], blocks[i], tile, mlp, top_k, narrow=is_narrow
            )
        )
    shape = (blocks[0].pairs.numel(), mlp.down.shape[2])
    inner = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(given.ids[0].numel(), mlp.down.shape[1], device="cuda", dtype=torch.bfloat16)
    return microseconds(
        lambda i: experts.multiply(
            out,
            inner,
            mlp.down,
            None,
            blocks[i],
            tile,
            weights=given.weights[i],
            is_sorted=True,
            scale=mlp.down_scale,
            narrow=is_narrow,
        )
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="qwen3-30b-a3b", choices=SIZES)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 256, 2048, 8192])
    parser.add_argument("--scales", default="none", choices=("none", "output", "block"))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("INDEX", "COUNT"))
    args = parser.parse_args()
    num_experts, top_k = SIZES[args.sizes][:2]
    index, count = args.part
    for num_tokens in args.tokens:
        given = problem(args.sizes, num_tokens, args.scales)
        found = candidates(num_tokens, num_tokens * top_k / num_experts, is_narrow=has_narrow_rows(given))
        (check if args.check else time)(given, list(found)[index::count])
    print(f"{CALLS} calls a graph", flush=True)


if __name__ == "__main__":
    main()
