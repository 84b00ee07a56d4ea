// Tensor maps of the copy engine, zeros outside. Knows no kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace llm_kernels::cuda {

// A dimension beyond the innermost one: how many, how far apart in bytes, and how many one copy takes.
struct MapDimension {
  std::int64_t extent, stride;
  int box;
};

constexpr int kMostOuterDimensions = 4;

// The map of `num_outer` dimensions around `columns` contiguous elements, of which a copy takes `box_columns`.
// Throws std::runtime_error where the driver has no tensor maps or refuses this one.
CUtensorMap encode_map(CUtensorMapDataType type, const void* data, std::int64_t columns, int box_columns,
                       const MapDimension* outer, int num_outer,
                       CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B);

}  // namespace llm_kernels::cuda
