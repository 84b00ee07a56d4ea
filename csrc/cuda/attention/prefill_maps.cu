// The dimensions and boxes of the prefill kernel's tensor maps.

#include "cuda/attention/prefill_maps.h"
#include "cuda/tensor_map.h"

namespace llm_kernels::cuda::attention {
namespace {

constexpr int kElementBytes = 2;

template <int Dimensions>
CUtensorMap encoded_map(const void* data, bool is_half, int columns, const MapDimension (&outer)[Dimensions]) {
  return encode_map(is_half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, columns, 64,
                    outer, Dimensions);
}

}  // namespace

CUtensorMap encode_query_map(const PrefillAttentionArgs& args, int tokens) {
  const int group = args.num_heads / args.num_kv_heads;
  const MapDimension outer[] = {{args.num_heads, args.query_stride_head * kElementBytes, group},
                                {args.num_tokens, args.query_stride_token * kElementBytes, tokens}};
  return encoded_map(args.query, args.is_half, args.head_size, outer);
}

CUtensorMap encode_cache_map(const PrefillAttentionArgs& args, const PagedCache& cache, int tokens, bool panelled) {
  if (panelled) {
    const MapDimension outer[] = {{args.block_size, cache.stride_token * kElementBytes, tokens},
                                  {args.num_kv_heads, cache.stride_head * kElementBytes, 1},
                                  {args.num_blocks, cache.stride_block * kElementBytes, 1}};
    return encoded_map(cache.data, args.is_half, args.head_size, outer);
  }
  const int panels = args.head_size / 64;
  const MapDimension outer[] = {{8, cache.stride_token * kElementBytes, 8},
                                {args.num_kv_heads * panels, 64 * kElementBytes, panels},
                                {args.block_size / 8, cache.stride_token * 8 * kElementBytes, tokens / 8},
                                {args.num_blocks, cache.stride_block * kElementBytes, 1}};
  return encoded_map(cache.data, args.is_half, 64, outer);
}

}  // namespace llm_kernels::cuda::attention
