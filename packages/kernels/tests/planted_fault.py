"""A fault on purpose, which memcheck must find: `scripts/gpu_check.sh` runs it to prove that it looks.

Named so that no run collects it: without compute-sanitizer it ends the CUDA context of its process.
"""

from __future__ import annotations

import torch
from llm_kernels import ops


def test_keys_far_outside_of_the_cache_are_read(make_attention_case):
    case = make_attention_case(
        [(1, 100), (1, 300)], num_heads=8, num_kv_heads=2, head_size=128, dtype=torch.bfloat16, device="cuda"
    )
    case.metadata.block_tables.fill_(1 << 24)
    with ops.use_backend("paged_attention", "cuda"):
        case.run()
    torch.cuda.synchronize()
