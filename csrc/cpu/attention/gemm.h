// Small matrix products out of registers, for attention tiles: C += A B with B's rows dense or paged.
#pragma once

#include "cpu/simd/vec.h"

namespace llm_kernels {
namespace LLM_ISA {

struct DenseRows {
  const float* data;
  std::int64_t stride;
  LLM_INLINE const float* row(const DenseRows& self, std::int64_t k) { return self.data + k * self.stride; }
};

template <class T>
struct PagedRows {
  const T* const* rows;
  LLM_INLINE const T* row(const PagedRows& self, std::int64_t k) { return self.rows[k]; }
};

template <int M, int V, class Rows>
LLM_INLINE void gemm_block(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const Rows& b,
                           std::int64_t column, std::int64_t depth) {
  VecF acc[M][V];
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < V; ++v) acc[m][v] = load(c + m * ldc + column + v * kLanes);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    const auto* row = Rows::row(b, k) + column;
    VecF right[V];
    for (int v = 0; v < V; ++v) right[v] = load(row + v * kLanes);
    for (int m = 0; m < M; ++m) {
      const VecF left = splat(a[m * lda + k]);
      for (int v = 0; v < V; ++v) acc[m][v] += left * right[v];
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < V; ++v) store(c + m * ldc + column + v * kLanes, acc[m][v]);
  }
}

template <int M, class Rows>
LLM_INLINE void gemm_rows(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const Rows& b,
                          std::int64_t columns, std::int64_t depth) {
  std::int64_t column = 0;
  if constexpr (M <= 3) {  // enough sums in flight to hide the latency of the multiply-add
    for (; column + 4 * kLanes <= columns; column += 4 * kLanes) gemm_block<M, 4>(c, ldc, a, lda, b, column, depth);
  }
  for (; column + 2 * kLanes <= columns; column += 2 * kLanes) gemm_block<M, 2>(c, ldc, a, lda, b, column, depth);
  for (; column < columns; column += kLanes) gemm_block<M, 1>(c, ldc, a, lda, b, column, depth);
}

// c[rows, columns] += a[rows, depth] b[depth, columns]; columns is a multiple of 16.
template <class Rows>
static void gemm(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const Rows& b, std::int64_t rows,
                 std::int64_t columns, std::int64_t depth) {
  for (; rows >= 6; rows -= 6, c += 6 * ldc, a += 6 * lda) gemm_rows<6>(c, ldc, a, lda, b, columns, depth);
  switch (rows) {
    case 5: return gemm_rows<5>(c, ldc, a, lda, b, columns, depth);
    case 4: return gemm_rows<4>(c, ldc, a, lda, b, columns, depth);
    case 3: return gemm_rows<3>(c, ldc, a, lda, b, columns, depth);
    case 2: return gemm_rows<2>(c, ldc, a, lda, b, columns, depth);
    case 1: return gemm_rows<1>(c, ldc, a, lda, b, columns, depth);
    default: return;
  }
}

}  // namespace LLM_ISA
}  // namespace llm_kernels
