"""How many KV pages fit: measured on a GPU, a stated budget on a CPU; knows nothing of plans.

GPU: `gpu_memory_fraction` of the device, minus what is in use now (weights, the CUDA context, other
processes), minus the most that one full step needs beyond it, which is measured by running one, minus a
reserve: 256 MiB, and 1 GiB more where decode steps are captured as graphs. CPU: 4 GiB or a quarter of the
available memory, whichever is less. `kv_cache_bytes` overrides both.
"""

from __future__ import annotations

from pathlib import Path

import torch
from llm_kernels.ops import AttentionMetadata, SamplingBatch, sample
from llm_models.model import Model

from llm_engine.worker.config import WorkerConfig
from llm_engine.worker.errors import KVCacheTooSmall
from llm_engine.worker.kv_groups import KVLayout
from llm_engine.worker.kv_pool import allocate_pool

CPU_BUDGET_BYTES = 4 * 2**30
CPU_SHARE = 0.25
# The allocator's fragmentation, cuBLAS workspaces and kernels loaded later.
_GPU_RESERVE_BYTES = 256 * 2**20


# The captured decode steps: their shared intermediates and outputs, and what the driver keeps of each node.
_GRAPHS_RESERVE_BYTES = 2**30


def count_pages(model: Model, layout: KVLayout, config: WorkerConfig, *, graphs: bool = False) -> int:
    """Number of KV pages that fit; `graphs`: beside captured decode steps.

    Raises:
        KVCacheTooSmall: They do not hold one request of `max_model_len` tokens (of one token, where that is
            open).
    """
    if config.kv_cache_bytes is not None:
        available, remedy = config.kv_cache_bytes, "raise kv_cache_bytes"
    elif model.device.type == "cuda":
        available = _gpu_bytes(model, layout, config) - (_GRAPHS_RESERVE_BYTES if graphs else 0)
        remedy = "raise gpu_memory_fraction, lower max_num_batched_tokens or max_num_seqs"
    else:
        available = min(CPU_BUDGET_BYTES, int(available_memory_bytes() * CPU_SHARE))
        remedy = "set kv_cache_bytes"
    num_pages = max(available, 0) // layout.page_bytes
    needed = layout.pages(config.max_model_len or 1)
    if num_pages < needed:
        fitting = layout.longest(num_pages)
        lower = f"lower max_model_len to at most {fitting}, or " if fitting else ""
        raise KVCacheTooSmall(max(available, 0), needed * layout.page_bytes, lower + remedy)
    return num_pages


def available_memory_bytes() -> int:
    """Memory that can be taken without swapping: the machine's, or what the control group leaves."""
    available = _meminfo_available()
    limit, used = _read_int("/sys/fs/cgroup/memory.max"), _read_int("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        available = min(available, max(limit - used, 0))
    return available


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say MemAvailable")


def _read_int(path: str) -> int | None:
    """The number in a file; None where there is no such file or no number ("max")."""
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _gpu_bytes(model: Model, layout: KVLayout, config: WorkerConfig) -> int:
    torch.cuda.synchronize(model.device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(model.device)
    peak = _step_peak_bytes(model, layout, config)
    return int(total * config.gpu_memory_fraction) - (total - free) - peak - _GPU_RESERVE_BYTES


@torch.inference_mode()
def _step_peak_bytes(model: Model, layout: KVLayout, config: WorkerConfig) -> int:
    """The most bytes a full step takes beyond the weights: prompts, logits of all slots, a full sort."""
    device = model.device
    caches = allocate_pool(model.caches, layout, 1, model.dtype, device).caches
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    num_rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    hidden = model.forward(*_dummy_step(model, layout, config, num_rows), caches)
    logits = model.raw_logits(hidden[:num_rows])
    sample(logits, _dummy_sampling(num_rows, device))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del hidden, logits, caches
    torch.cuda.empty_cache()
    return peak


def _dummy_step(
    model: Model, layout: KVLayout, config: WorkerConfig, num_rows: int
) -> tuple[torch.Tensor, list[AttentionMetadata]]:
    """A full budget of prompt tokens over all rows; their KV goes nowhere, they read the one page.

    Recurrent states are written to it by all rows: what it holds does not matter.
    """
    device, total = model.device, config.max_num_batched_tokens
    base, longer = divmod(total, num_rows)
    lengths = torch.tensor(
        [base + (row < longer) for row in range(num_rows)], dtype=torch.int32, device=device
    )
    longest = base + (longer > 0)
    by_group = []
    for group in layout.groups:
        width = -(-longest // group.block_size)
        by_group.append(
            AttentionMetadata(
                cu_query_lens=torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32),
                context_lens=lengths,
                block_tables=torch.zeros((num_rows, width), dtype=torch.int32, device=device),
                slot_mapping=torch.full((total,), -1, dtype=torch.int64, device=device),
                positions=torch.zeros(total, dtype=torch.int64, device=device),
                num_decodes=0,
                max_query_len=longest,
                max_context_len=longest,
                block_size=group.block_size,
            )
        )
    metadata = [by_group[group] for group in layout.cache_groups()]
    return torch.zeros(total, dtype=torch.int64, device=device), metadata


def _dummy_sampling(num_rows: int, device: torch.device) -> SamplingBatch:
    whole = torch.arange(num_rows, device=device)
    return SamplingBatch(
        temperature=torch.ones(num_rows, device=device),
        top_p=torch.full((num_rows,), 0.9, device=device),
        min_p=torch.zeros(num_rows, device=device),
        top_k=torch.zeros(num_rows, dtype=torch.int32, device=device),
        seeds=whole,
        positions=whole,
        any_top_p=True,
        filtered_rows=whole,
        num_logprobs=5,
    )
