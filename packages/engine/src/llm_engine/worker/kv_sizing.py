"""How many KV pages fit: measured on a GPU, a stated budget on a CPU; knows nothing of plans.

GPU: `gpu_memory_fraction` of the device, minus what is in use now (weights, the CUDA context, other
processes), minus the slot tables, minus the most that one step takes beyond them (measured by running the
largest ones), minus what `memory_plan` sets aside. CPU: 4 GiB or a quarter of the available memory, whichever
is less. `kv_cache_bytes` overrides both.
"""

from __future__ import annotations

from pathlib import Path

import torch
from llm_models.model import Model

from llm_engine.worker.config import WorkerConfig
from llm_engine.worker.errors import KVCacheTooSmall
from llm_engine.worker.kv_groups import KVLayout
from llm_engine.worker.memory_plan import MemoryPlan, penalty_bytes, tables_bytes
from llm_engine.worker.step_peak import LargestSteps, measure_step_bytes

CPU_BUDGET_BYTES = 4 * 2**30
CPU_SHARE = 0.25


def measure_memory(model: Model, layout: KVLayout, config: WorkerConfig, *, graphs: bool) -> MemoryPlan:
    """Finds what a GPU's memory is spent on, by running the largest steps.

    Args:
        model: Loaded, on a CUDA device.
        layout: Its KV groups.
        config: Its limits.
        graphs: Whether steps will be captured.
    """
    device = model.device
    longest = config.max_model_len or model.spec.max_positions
    steps = LargestSteps(
        model,
        layout,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=longest,
    )
    # First, so that the kernels are loaded and the libraries have their workspaces when "in use" is read.
    step_bytes = measure_step_bytes(steps, model, layout)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return MemoryPlan(
        device_bytes=total,
        limit_bytes=int(total * config.gpu_memory_fraction),
        weights_bytes=weights,
        other_bytes=total - free - weights,
        tables_bytes=tables_bytes(layout, config.max_num_seqs, longest),
        step_bytes=max(step_bytes, penalty_bytes(config.max_num_seqs, longest)),
        graphs_bytes=int(config.graph_memory_gib * 2**30) if graphs else 0,
    )


def count_pages(layout: KVLayout, config: WorkerConfig, plan: MemoryPlan | None) -> int:
    """Number of KV pages that fit.

    Args:
        layout: The KV groups.
        config: The limits.
        plan: Of a GPU; None for a CPU, or where `kv_cache_bytes` says the size.

    Raises:
        KVCacheTooSmall: They do not hold one request of `max_model_len` tokens (of one token, where that is
            open).
    """
    if config.kv_cache_bytes is not None:
        available, remedy = config.kv_cache_bytes, "raise kv_cache_bytes"
    elif plan is not None:
        available = plan.kv_bytes
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
