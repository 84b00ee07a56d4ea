// Attention of rows of many query tokens over a paged KV cache on Hopper. Knows no framework: strides in elements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace llm_kernels::cuda {

// One of the two caches, [N, block_size, K, D], D contiguous; strides and the address are multiples of 16 bytes. Of the
// dtype of the query, or e4m3.
struct PagedCache {
  const void* data;
  std::int64_t stride_block, stride_token, stride_head;
};

struct PrefillAttentionArgs {
  void* out;  // [T, H, D], dtype of the query, rows of D aligned to 16 bytes
  std::int64_t out_stride_token, out_stride_head;
  const void* query;  // [T, H, D], strides and address multiples of 16 bytes
  std::int64_t query_stride_token, query_stride_head;
  PagedCache key, value;
  const std::int32_t* cu_query_lens;  // [R + 1]
  const std::int32_t* context_lens;   // [R]
  const std::int32_t* block_tables;   // [R, ...]
  std::int64_t block_tables_stride;
  const float* sinks;          // [H]; null: none
  const float* key_scale;      // [K], what keys in e4m3 are multiplied by; null: 1
  const float* value_scale;
  float* log_sum_exp;          // [H, T], natural logarithm of the softmax's denominator; null: not wanted
  std::int32_t* tile_counter;  // one int32 of scratch, or null: tiles are dealt out in a fixed order
  std::int32_t first_row;      // rows before it are left alone; each of them is one token
  std::int32_t num_rows;       // from first_row on
  std::int32_t num_tokens;     // T
  std::int32_t num_heads, num_kv_heads, head_size;
  std::int32_t num_blocks, block_size;
  float scale;                  // above 0
  float soft_cap;               // 0: none
  std::int32_t sliding_window;  // 0: none
  std::int32_t chunk;           // 0: none
  bool causal;                  // else every query sees the whole context; no window or chunk then
  bool is_half;                 // fp16, else bf16
  bool is_e4m3;                 // the caches
  std::int32_t num_processors;  // multiprocessors of the device
};

// Query heads that one KV head may have: they are rows of one tile of 128.
constexpr int kMaxPrefillGroup = 64;

// Whether there is a kernel for this head size.
bool has_prefill_attention(int head_size);

// Launches on the stream. Throws std::runtime_error where the driver refuses a tensor map.
cudaError_t prefill_attention(const PrefillAttentionArgs& args, cudaStream_t stream);

}  // namespace llm_kernels::cuda
