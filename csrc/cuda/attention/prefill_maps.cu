// The dimensions and boxes of the prefill kernel's tensor maps.

#include "cuda/attention/prefill_maps.h"
#include "cuda/tensor_map.h"

namespace llm_kernels::cuda::attention {
namespace {

constexpr int kQueryBytes = 2;

CUtensorMapDataType float_type(const PrefillAttentionArgs& args) {
  return args.is_half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

template <int Dimensions>
CUtensorMap encoded_cache(const PrefillAttentionArgs& args, const void* data, int columns,
                          const MapDimension (&outer)[Dimensions]) {
  if (args.is_e4m3) {
    return encode_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, data, columns, 64, outer, Dimensions, CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  return encode_map(float_type(args), data, columns, 64, outer, Dimensions);
}

}  // namespace

int cache_element_bytes(const PrefillAttentionArgs& args) { return args.is_e4m3 ? 1 : 2; }

CUtensorMap encode_query_map(const PrefillAttentionArgs& args, int tokens) {
  const int group = args.num_heads / args.num_kv_heads;
  const MapDimension outer[] = {{args.num_heads, args.query_stride_head * kQueryBytes, group},
                                {args.num_tokens, args.query_stride_token * kQueryBytes, tokens}};
  return encode_map(float_type(args), args.query, args.head_size, 64, outer, 2);
}

CUtensorMap encode_cache_map(const PrefillAttentionArgs& args, const PagedCache& cache, int tokens, bool panelled) {
  const int bytes = cache_element_bytes(args);
  if (panelled) {
    const MapDimension outer[] = {{args.block_size, cache.stride_token * bytes, tokens},
                                  {args.num_kv_heads, cache.stride_head * bytes, 1},
                                  {args.num_blocks, cache.stride_block * bytes, 1}};
    return encoded_cache(args, cache.data, args.head_size, outer);
  }
  const int panels = args.head_size / 64;
  const MapDimension outer[] = {{8, cache.stride_token * bytes, 8},
                                {args.num_kv_heads * panels, 64 * bytes, panels},
                                {args.block_size / 8, cache.stride_token * 8 * bytes, tokens / 8},
                                {args.num_blocks, cache.stride_block * bytes, 1}};
  return encoded_cache(args, cache.data, 64, outer);
}

}  // namespace llm_kernels::cuda::attention
