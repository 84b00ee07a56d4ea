// Attention over a paged KV cache on the CPU. Knows no framework: raw pointers, strides in elements.
#pragma once

#include <cstdint>

#include "llm_kernels/common.h"

namespace llm_kernels {

struct CacheView {
  const void* data;
  std::int64_t stride_block, stride_token, stride_head;  // the head dimension is contiguous
};

struct PagedAttentionArgs {
  void* out;  // [T, H, V], dtype of the query
  std::int64_t out_stride_token, out_stride_head;
  const void* query;  // [T, H, D]
  std::int64_t query_stride_token, query_stride_head;
  DType query_dtype;
  CacheView key, value;  // [N, block_size, K, D], [N, block_size, K, V]
  DType cache_dtype;
  const std::int32_t* cu_query_lens;  // [R + 1]
  const std::int32_t* context_lens;   // [R]
  const std::int32_t* block_tables;   // [R, max_blocks]
  std::int64_t block_tables_stride;
  std::int64_t num_rows, num_tokens, max_blocks, num_blocks, block_size;
  std::int64_t num_heads, num_kv_heads, head_size, value_size;  // D and V: multiples of 16
  float scale;
  std::int64_t sliding_window;  // -1: none
  float soft_cap;               // 0: none
  std::int64_t chunk;           // -1: none
  const float* sinks;           // [H]; null: none
  const float* alibi_slopes;    // [H]; null: none
  bool causal;                  // else every query sees the whole context; no window, chunk or slopes then
  // Whether a query's sums must not depend on what else is computed: tiles of keys begin at multiples of their size,
  // few rows are computed as many are, and no keys are split.
  bool batch_invariant;
  int num_threads;
};

// The first key that a query at `position`, and those after it, see.
inline std::int64_t first_key(const PagedAttentionArgs& args, std::int64_t position) {
  std::int64_t first = 0;
  if (args.sliding_window > 0 && position + 1 - args.sliding_window > first) first = position + 1 - args.sliding_window;
  if (args.chunk > 0 && position / args.chunk * args.chunk > first) first = position / args.chunk * args.chunk;
  return first;
}

// Checks every length and every block id it will read, then computes. Throws ArgumentError before any write.
void paged_attention(const PagedAttentionArgs& args);

}  // namespace llm_kernels
