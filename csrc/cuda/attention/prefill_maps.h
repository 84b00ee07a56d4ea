// Tensor maps of queries and paged caches for the prefill kernel. Knows nothing of the kernel but its boxes.
#pragma once

#include <cuda.h>

#include "llm_kernels/cuda/prefill_attention.h"

namespace llm_kernels::cuda::attention {

// [T, H, D] in boxes of `tokens` query tokens, the heads of one KV head, 64 columns. Outside: zeros.
CUtensorMap encode_query_map(const PrefillAttentionArgs& args, int tokens);

// [N, H, block_size, D] in boxes of one block, one head, `tokens` keys of it, 64 columns. Outside: zeros.
CUtensorMap encode_cache_map(const PrefillAttentionArgs& args, const PagedCache& cache, int tokens);

}  // namespace llm_kernels::cuda::attention
