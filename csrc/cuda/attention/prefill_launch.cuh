// Launches one configuration of the prefill kernel: parameters, tensor maps, grid. Knows nothing of which is best.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>

#include "cuda/attention/prefill_kernel.cuh"
#include "cuda/attention/prefill_maps.h"
#include "llm_kernels/cuda/prefill_attention.h"

namespace llm_kernels::cuda::attention {

// Keys and values that blocks working at the same time should share, so that they are read from the L2 cache.
constexpr int kSectionBytes = 16 << 20;

template <class Config>
PrefillParams prefill_params(const PrefillAttentionArgs& args) {
  PrefillParams params{};
  const int group = args.num_heads / args.num_kv_heads;
  PrefillRows& rows = params.rows;
  rows.cu_query_lens = args.cu_query_lens;
  rows.context_lens = args.context_lens;
  rows.block_tables = args.block_tables;
  rows.block_tables_stride = args.block_tables_stride;
  rows.first_row = args.first_row;
  rows.num_rows = args.num_rows;
  rows.num_kv_heads = args.num_kv_heads;
  rows.tokens_per_tile = Config::kRows / group;
  rows.num_pieces = ((args.num_tokens - args.first_row) / rows.tokens_per_tile + args.num_rows) * args.num_kv_heads;
  rows.block_size = args.block_size;
  rows.box_tokens = std::gcd(args.block_size, Config::kKeys);
  rows.section_keys = kSectionBytes / (2 * cache_element_bytes(args) * args.head_size);
  rows.window = args.sliding_window;
  rows.chunk = args.chunk;
  rows.causal = args.causal;
  params.out = args.out;
  params.out_stride_token = args.out_stride_token;
  params.out_stride_head = args.out_stride_head;
  params.sinks = args.sinks;
  params.key_scale = args.key_scale;
  params.value_scale = args.value_scale;
  params.log_sum_exp = args.log_sum_exp;
  params.group = group;
  params.num_tokens = args.num_tokens;
  params.num_blocks = args.num_blocks;
  constexpr float log2_e = 1.4426950408889634f;
  params.scale_log2 = (args.soft_cap > 0 ? args.soft_cap : args.scale) * log2_e;
  params.cap_scale = args.soft_cap > 0 ? args.scale / args.soft_cap : 0.0f;
  return params;
}

template <class Config>
cudaError_t launch_prefill(const PrefillAttentionArgs& args, cudaStream_t stream) {
  PrefillParams params = prefill_params<Config>(args);
  const int grid = std::min(params.rows.num_pieces, args.num_processors);
  if (grid <= 0) return cudaSuccess;
  if (grid < params.rows.num_pieces && args.tile_counter != nullptr) {  // else each block takes one piece anyway
    params.tile_counter = args.tile_counter;
    const cudaError_t error = cudaMemsetAsync(params.tile_counter, 0, sizeof(std::int32_t), stream);
    if (error != cudaSuccess) return error;
  }
  const CUtensorMap query_map = encode_query_map(args, params.rows.tokens_per_tile);
  const CUtensorMap key_map = encode_cache_map(args, args.key, params.rows.box_tokens, Config::kPanelled);
  const CUtensorMap value_map = encode_cache_map(args, args.value, params.rows.box_tokens, Config::kPanelled);
  const auto kernel = prefill_kernel<Config>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes);
  if (error != cudaSuccess) return error;
  kernel<<<grid, Config::kThreads, Config::kSharedBytes, stream>>>(params, query_map, key_map, value_map);
  return cudaGetLastError();
}

}  // namespace llm_kernels::cuda::attention
