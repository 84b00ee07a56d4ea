// Encodes the tensor maps through the driver, which is found at run time: the library must load without one.

#include "cuda/attention/prefill_maps.h"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace llm_kernels::cuda::attention {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || entry == nullptr) {
    throw std::runtime_error("the driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<Encode>(entry);
}

struct Dimension {
  std::int64_t extent, stride;  // elements
  int box;
};

template <int Dimensions>
CUtensorMap encoded_map(const void* data, bool is_half, int columns, const Dimension (&outer)[Dimensions]) {
  static const Encode encode = find_encode();
  cuuint64_t extents[Dimensions + 1] = {static_cast<cuuint64_t>(columns)}, strides[Dimensions];
  cuuint32_t box[Dimensions + 1] = {64}, steps[Dimensions + 1] = {1};
  for (int i = 0; i < Dimensions; ++i) {
    extents[i + 1] = static_cast<cuuint64_t>(outer[i].extent);
    // Along a dimension of one the stride means nothing, but it must be one that the driver takes.
    strides[i] = outer[i].extent == 1 ? 16 : static_cast<cuuint64_t>(outer[i].stride) * 2;
    box[i + 1] = static_cast<cuuint32_t>(outer[i].box);
    steps[i + 1] = 1;
  }
  CUtensorMap map;
  const CUresult result =
      encode(&map, is_half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, Dimensions + 1,
             const_cast<void*>(data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(result));
  return map;
}

}  // namespace

CUtensorMap encode_query_map(const PrefillAttentionArgs& args, int tokens) {
  const int group = args.num_heads / args.num_kv_heads;
  const Dimension outer[] = {{args.num_heads, args.query_stride_head, group},
                             {args.num_tokens, args.query_stride_token, tokens}};
  return encoded_map(args.query, args.is_half, args.head_size, outer);
}

CUtensorMap encode_cache_map(const PrefillAttentionArgs& args, const PagedCache& cache, int tokens, bool panelled) {
  if (panelled) {
    const Dimension outer[] = {{args.block_size, cache.stride_token, tokens},
                               {args.num_kv_heads, cache.stride_head, 1},
                               {args.num_blocks, cache.stride_block, 1}};
    return encoded_map(cache.data, args.is_half, args.head_size, outer);
  }
  const int panels = args.head_size / 64;
  const Dimension outer[] = {{8, cache.stride_token, 8},
                             {args.num_kv_heads * panels, 64, panels},
                             {args.block_size / 8, cache.stride_token * 8, tokens / 8},
                             {args.num_blocks, cache.stride_block, 1}};
  return encoded_map(cache.data, args.is_half, 64, outer);
}

}  // namespace llm_kernels::cuda::attention
