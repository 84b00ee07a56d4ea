// Encodes tensor maps through the driver, which is found at run time: the library must load without one.

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "cuda/tensor_map.h"

namespace llm_kernels::cuda {
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

}  // namespace

CUtensorMap encode_map(CUtensorMapDataType type, const void* data, std::int64_t columns, int box_columns,
                       const MapDimension* outer, int num_outer, CUtensorMapSwizzle swizzle) {
  static const Encode encode = find_encode();
  cuuint64_t extents[kMostOuterDimensions + 1] = {static_cast<cuuint64_t>(columns)}, strides[kMostOuterDimensions];
  cuuint32_t box[kMostOuterDimensions + 1] = {static_cast<cuuint32_t>(box_columns)};
  cuuint32_t steps[kMostOuterDimensions + 1] = {1};
  for (int i = 0; i < num_outer; ++i) {
    extents[i + 1] = static_cast<cuuint64_t>(outer[i].extent);
    // Along a dimension of one the stride means nothing, but it must be one that the driver takes.
    strides[i] = outer[i].extent == 1 ? 16 : static_cast<cuuint64_t>(outer[i].stride);
    box[i + 1] = static_cast<cuuint32_t>(outer[i].box);
    steps[i + 1] = 1;
  }
  CUtensorMap map;
  const CUresult result = encode(&map, type, num_outer + 1, const_cast<void*>(data), extents, strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(result));
  return map;
}

}  // namespace llm_kernels::cuda
