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
  void* out;  // [T, H, D], dtype of the query
  std::int64_t out_stride_token, out_stride_head;
  const void* query;  // [T, H, D]
  std::int64_t query_stride_token, query_stride_head;
  DType query_dtype;
  CacheView key, value;  // [N, block_size, K, D]
  DType cache_dtype;
  const std::int32_t* cu_query_lens;  // [R + 1]
  const std::int32_t* context_lens;   // [R]
  const std::int32_t* block_tables;   // [R, max_blocks]
  std::int64_t block_tables_stride;
  std::int64_t num_rows, num_tokens, max_blocks, num_blocks, block_size;
  std::int64_t num_heads, num_kv_heads, head_size;  // head_size: a multiple of 16
  float scale;
  std::int64_t sliding_window;  // -1: none
  float soft_cap;               // 0: none
  int num_threads;
};

// Checks every length and every block id it will read, then computes. Throws ArgumentError before any write.
void paged_attention(const PagedAttentionArgs& args);

}  // namespace llm_kernels
