// Tensor maps of the copy engine for matrices in rows, with the 128-byte swizzle. Knows no kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace llm_kernels::cuda {

// A matrix of `rows` rows of `columns` elements, `stride` elements apart, and the box one copy takes. Outside: zeros.
struct MapShape {
  const void* data;
  std::int64_t rows, columns, stride;
  bool is_bytes;  // float8; else bfloat16
  int box_rows, box_columns;
};

// Throws std::runtime_error where the driver has no tensor maps or refuses this one.
CUtensorMap encode_map(const MapShape& shape);

}  // namespace llm_kernels::cuda
