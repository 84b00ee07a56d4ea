"""Block bookkeeping of llm-kvcache against vLLM's KV cache manager, on one trace, in one process.

The trace: 256 live sequences; half of the prompts start with one of eight shared prefixes. A sequence is
opened, matched and grown for its prompt, then grown, appended to and committed a token a step, and released
at its end; another takes its place. Nothing is computed: what is timed is bookkeeping alone.

Run it with the peer's Python, and this repository's packages on the path (docs/performance.md says how to set
both up):

    PYTHONPATH=packages/kvcache/src /tmp/vllm-venv/bin/python benchmarks/kv_operations.py
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llm_kvcache import FullAttention, KVCache

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Arrival:
    """One sequence of the trace: its prompt, and how many tokens it yields."""

    prompt: np.ndarray
    num_outputs: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Sequences in the order in which they come, and how many live at once for how many steps."""

    arrivals: list[Arrival]
    num_live: int
    num_steps: int
    num_blocks: int


def make_trace(num_live: int = 256, num_steps: int = 300, seed: int = 0) -> Trace:
    """Draws the trace from a seed."""
    generator = np.random.default_rng(seed)
    prefixes = [generator.integers(0, 50_000, 512).astype(np.int32) for _ in range(8)]
    arrivals = []
    for index in range(num_live + num_live * num_steps // 128):
        own = generator.integers(0, 50_000, int(generator.integers(128, 1024))).astype(np.int32)
        prompt = np.concatenate([prefixes[int(generator.integers(8))], own]) if index % 2 else own
        arrivals.append(Arrival(prompt, int(generator.integers(64, 256))))
    return Trace(arrivals, num_live, num_steps, num_blocks=24_000)


def run_ours(trace: Trace) -> tuple[float, int]:
    """Seconds and tokens hit of the trace on llm-kvcache: single calls to admit, batch calls a step."""
    waiting = iter(trace.arrivals)
    token = np.ones(trace.num_live, np.int32)
    offsets = np.arange(trace.num_live + 1, dtype=np.int32)
    seqs = np.zeros(trace.num_live, np.int64)
    computed = np.zeros(trace.num_live, np.int32)
    left = np.zeros(trace.num_live, np.int32)

    started = time.perf_counter()
    cache = KVCache([FullAttention(BLOCK_SIZE)], trace.num_blocks)

    def admit(row: int) -> None:
        arrival = next(waiting)
        seq = cache.open(arrival.prompt)
        hit = cache.match(seq)
        assert cache.grow(seq, len(arrival.prompt) - hit)
        cache.commit(seq, len(arrival.prompt))
        seqs[row], computed[row], left[row] = seq, len(arrival.prompt), arrival.num_outputs

    for row in range(trace.num_live):
        admit(row)
    for _ in range(trace.num_steps):
        assert cache.grow_many(seqs, token).ok.all()
        cache.append_many(seqs, token, offsets)
        computed += 1
        left -= 1
        cache.commit_many(seqs, computed)
        ended = np.flatnonzero(left == 0)
        if len(ended):
            cache.release_many(seqs[ended])
            for row in ended.tolist():
                admit(row)
    elapsed = time.perf_counter() - started
    cache.check()
    return elapsed, cache.stats().hits


def make_vllm_runner(hash_name: str) -> Callable[[Trace], tuple[float, int]]:
    """The same trace on vLLM's manager, called as its scheduler calls it."""
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    hash_fn = get_hash_fn_by_name(hash_name)
    init_none_hash(hash_fn)
    hasher = get_request_block_hasher(BLOCK_SIZE, hash_fn)
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)

    def run(trace: Trace) -> tuple[float, int]:
        waiting = iter(enumerate(trace.arrivals))
        prompts = [arrival.prompt.tolist() for arrival in trace.arrivals]
        live: list[Request] = []
        left: list[int] = []
        hits = 0

        started = time.perf_counter()
        config = KVCacheConfig(trace.num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
        manager = KVCacheManager(config, 8192, BLOCK_SIZE, BLOCK_SIZE)

        def admit() -> tuple[Request, int]:
            nonlocal hits
            index, arrival = next(waiting)
            params = SamplingParams(max_tokens=arrival.num_outputs)
            request = Request(str(index), prompts[index], params, None, block_hasher=hasher)
            blocks, hit, *_ = manager.get_computed_blocks(request)
            new = len(arrival.prompt) - hit
            assert manager.allocate_slots(request, new, hit, blocks) is not None
            request.num_computed_tokens = len(arrival.prompt)
            hits += hit
            return request, arrival.num_outputs

        for _ in range(trace.num_live):
            request, outputs = admit()
            live.append(request)
            left.append(outputs)
        for _ in range(trace.num_steps):
            manager.new_step_starts()
            for row, request in enumerate(live):
                request.append_output_token_ids(1)
                assert manager.allocate_slots(request, 1) is not None
                request.num_computed_tokens += 1
                left[row] -= 1
                if not left[row]:
                    manager.free(request)
                    live[row], left[row] = admit()
        return time.perf_counter() - started, hits

    return run


def time_long_match(num_tokens: int = 131_072, rounds: int = 20) -> float:
    """Least seconds to open (hash) and match a cached prompt of this length."""
    prompt = np.random.default_rng(1).integers(0, 50_000, num_tokens).astype(np.int32)
    cache = KVCache([FullAttention(BLOCK_SIZE)], 2 * num_tokens // BLOCK_SIZE)
    best = float("inf")
    for index in range(rounds + 1):
        started = time.perf_counter()
        seq = cache.open(prompt)
        hit = cache.match(seq)
        elapsed = time.perf_counter() - started
        if index:
            assert hit == num_tokens - BLOCK_SIZE
            best = min(best, elapsed)
        assert cache.grow(seq, num_tokens - hit)
        cache.commit(seq, num_tokens)
        cache.release(seq)
    return best


def measure_bytes_per_block(num_blocks: int = 10_000_000, policy: str = "lru") -> float:
    """Resident bytes a block of a cache whose blocks are all cached under a name."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cache = KVCache([FullAttention(1)], num_blocks, policy=policy)
    for start in range(0, num_blocks, 1_000_000):
        seq = cache.open(np.arange(start, min(start + 1_000_000, num_blocks), dtype=np.int32))
        cache.grow(seq, cache.num_tokens(seq))
        cache.commit(seq, cache.num_tokens(seq))
        cache.release(seq)
    assert cache.stats().cached == num_blocks
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (peak - before) * 1024 / num_blocks


def main() -> None:
    """Runs both in turns and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hash", default="sha256", help="vLLM's hash: sha256 (its default), xxhash, ...")
    parser.add_argument("--no-peer", action="store_true", help="only the figures of llm-kvcache")
    parser.add_argument("--bytes", action="store_true", help="also measure the bytes a block of 10 M blocks")
    args = parser.parse_args()
    figures: dict[str, object] = {"match_128k_ms": time_long_match() * 1e3}
    if args.bytes:
        figures["bytes_per_block"] = measure_bytes_per_block()
    trace = make_trace()
    ours, theirs, ratios = [], [], []
    run_peer = None if args.no_peer else make_vllm_runner(args.hash)
    for _ in range(args.rounds):
        seconds, hits = run_ours(trace)
        ours.append(seconds)
        if run_peer is not None:
            peer_seconds, peer_hits = run_peer(trace)
            theirs.append(peer_seconds)
            ratios.append(peer_seconds / seconds)
            figures["hits"], figures["peer_hits"] = hits, peer_hits
    figures["ours_s"] = ours
    if theirs:
        figures |= {"vllm_s": theirs, "ratios": ratios, "median_ratio": statistics.median(ratios)}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
