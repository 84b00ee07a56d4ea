// Tensor maps of queries and paged caches for the prefill kernel. Knows nothing of the kernel but its boxes.
#pragma once

#include <cuda.h>

#include "llm_kernels/cuda/prefill_attention.h"

namespace llm_kernels::cuda::attention {

// Bytes of an element of the caches.
int cache_element_bytes(const PrefillAttentionArgs& args);

// [T, H, D] in boxes of `tokens` query tokens, the heads of one KV head, 64 columns. Outside: zeros.
CUtensorMap encode_query_map(const PrefillAttentionArgs& args, int tokens);

// Boxes of one block, one head, `tokens` keys of it. As [key][64 columns] of one panel where `panelled`, else all
// panels of 64 columns as [eight keys][panel][key], which takes heads that lie D apart. Outside: zeros. Boxes of 16-bit
// floats are swizzled in rows of 128 bytes, those of e4m3 are not.
CUtensorMap encode_cache_map(const PrefillAttentionArgs& args, const PagedCache& cache, int tokens, bool panelled);

}  // namespace llm_kernels::cuda::attention
