"""`schedule()` + `update()` of the default scheduler against vLLM's, on the same state, in one process.

The state: R running rows that each decode one token a step, over a cache with room. Both schedulers are
synchronous here (each plan is updated before the next is made), so that the same work is done between two
tokens.

Run it with the peer's Python, and this repository's packages on the path (docs/performance.md says how to set
both up).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from llm_kvcache import FullAttention, KVCache
from llm_scheduler import Ragged, Request, SchedulerConfig, StepResult, TokenBudgetScheduler

BLOCK_SIZE = 16
PROMPT_TOKENS = 200
MAX_MODEL_LEN = 2048

Step = Callable[[], float]


def num_blocks(num_rows: int) -> int:
    """Blocks for all rows at their longest, and some."""
    return num_rows * MAX_MODEL_LEN // BLOCK_SIZE + 1


def prompts(num_rows: int) -> list[np.ndarray]:
    """Prompts without a shared prefix."""
    generator = np.random.default_rng(0)
    return [generator.integers(0, 50_000, PROMPT_TOKENS).astype(np.int32) for _ in range(num_rows)]


def make_ours(num_rows: int) -> Step:
    """Our scheduler with all rows running; a call times one step."""
    cache = KVCache([FullAttention(BLOCK_SIZE)], num_blocks(num_rows))
    config = SchedulerConfig(
        max_model_len=MAX_MODEL_LEN, max_num_seqs=num_rows, max_num_batched_tokens=num_rows * PROMPT_TOKENS
    )
    scheduler = TokenBudgetScheduler(config, cache)
    for index, prompt in enumerate(prompts(num_rows)):
        scheduler.add(Request(request_id=str(index), token_ids=prompt, max_tokens=1500))
    values = np.ones(num_rows, np.int32)
    offsets = np.arange(num_rows + 1, dtype=np.int32)

    def step() -> float:
        started = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        assert plan is not None
        assert plan.num_rows == num_rows
        # What a worker hands over is made outside the clock for both.
        result = StepResult(plan.step_id, Ragged(values, offsets))
        resumed = time.perf_counter()
        outputs = scheduler.update(plan, result)
        elapsed = time.perf_counter() - resumed + planned - started
        assert len(outputs) == num_rows
        return elapsed

    return step


def make_vllm(num_rows: int) -> Step:
    """VLLM's scheduler with all rows running; a call times one step."""
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        VllmConfig,
    )
    from vllm.config import (
        SchedulerConfig as PeerConfig,
    )
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request as PeerRequest
    from vllm.v1.structured_output import StructuredOutputManager

    folder = Path(tempfile.mkdtemp())
    model = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 50_000,
        "max_position_embeddings": MAX_MODEL_LEN,
        "eos_token_id": 49_999,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(model))
    scheduler_config = PeerConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=num_rows * PROMPT_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache_config = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    cache_config.num_gpu_blocks = num_blocks(num_rows)
    config = VllmConfig(
        model_config=ModelConfig(model=str(folder), skip_tokenizer_init=True, max_model_len=MAX_MODEL_LEN),
        scheduler_config=scheduler_config,
        cache_config=cache_config,
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
    )
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
    kv_config = KVCacheConfig(num_blocks(num_rows), [], [KVCacheGroupSpec(["layer"], spec)])
    init_none_hash(sha256)
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=kv_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=False,
    )
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    for index, prompt in enumerate(prompts(num_rows)):
        params = SamplingParams(max_tokens=1500, ignore_eos=True)
        scheduler.add_request(PeerRequest(str(index), prompt.tolist(), params, None, block_hasher=hasher))

    def step() -> float:
        started = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        ids = list(plan.num_scheduled_tokens)
        assert len(ids) == num_rows
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: row for row, request_id in enumerate(ids)},
            sampled_token_ids=[[1] for _ in ids],
        )
        resumed = time.perf_counter()
        outputs = scheduler.update_from_output(plan, result)
        elapsed = time.perf_counter() - resumed + planned - started
        assert sum(len(batch.outputs) for batch in outputs.values()) == num_rows
        return elapsed

    return step


def main() -> None:
    """Steps both in turns and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--steps", type=int, default=60, help="steps of each, in turns")
    parser.add_argument("--no-peer", action="store_true", help="only our scheduler")
    args = parser.parse_args()
    figures: dict[int, dict[str, object]] = {}
    for rows in args.rows:
        ours, theirs = make_ours(rows), None if args.no_peer else make_vllm(rows)
        # The first step is the prompts'; the next ones warm caches.
        for _ in range(3):
            ours()
            if theirs is not None:
                theirs()
        times = [(ours(), theirs() if theirs is not None else 0.0) for _ in range(args.steps)]
        own, peer = [t for t, _ in times], [t for _, t in times]
        figures[rows] = {"ours_ms": {"least": min(own) * 1e3, "median": statistics.median(own) * 1e3}}
        if theirs is not None:
            figures[rows] |= {
                "vllm_ms": {"least": min(peer) * 1e3, "median": statistics.median(peer) * 1e3},
                "ratio_of_least": min(peer) / min(own),
                "median_of_ratios": statistics.median(b / a for a, b in times),
            }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
