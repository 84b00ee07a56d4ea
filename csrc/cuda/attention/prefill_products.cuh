// The two products of a tile, over the layouts that prefill_kernel.cuh describes. Knows nothing of the softmax.
#pragma once

#include "cuda/attention/prefill_config.cuh"
#include "cuda/attention/wgmma.cuh"

namespace llm_kernels::cuda::attention {

// scores = Q K^T
template <class Config>
__device__ __forceinline__ void multiply_scores(float (&scores)[Config::kKeys / 2], std::uint32_t queries,
                                                std::uint32_t keys) {
#pragma unroll
  for (int step = 0; step < Config::kHead / 16; ++step) {
    const int panel = step / 4, bytes = step % 4 * 32;
    ScoreProduct<typename Config::Element, Config::kKeys>::run(
        scores, k_major_tile(queries + panel * Config::kQueryPanel + bytes, 1024),
        k_major_tile(keys + panel * Config::kKeyPanel + bytes, Config::kEightKeys), step > 0);
  }
}

// The 16 rows of a warp as fragments: registers 4 * step to 4 * step + 3 hold columns 16 * step on.
template <class Config>
__device__ __forceinline__ void load_queries(std::uint32_t (&fragments)[Config::kHead / 4], std::uint32_t queries,
                                             int thread) {
  const int row = thread / 32 * 16 + thread % 16, high = thread % 32 / 16;
#pragma unroll
  for (int step = 0; step < Config::kHead / 16; ++step) {
    const int chunk = step % 4 * 2 + high;
    const std::uint32_t from = queries + step / 4 * Config::kQueryPanel + row * 128 + (chunk ^ row % 8) * 16;
    std::uint32_t* x = fragments + 4 * step;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  }
}

// scores = Q K^T, queries in registers
template <class Config>
__device__ __forceinline__ void multiply_scores(float (&scores)[Config::kKeys / 2],
                                                const std::uint32_t (&queries)[Config::kHead / 4], std::uint32_t keys) {
#pragma unroll
  for (int step = 0; step < Config::kHead / 16; ++step) {
    const int panel = step / 4, bytes = step % 4 * 32;
    RegisterScoreProduct<typename Config::Element, Config::kKeys>::run(
        scores, queries + 4 * step, k_major_tile(keys + panel * Config::kKeyPanel + bytes, Config::kEightKeys),
        step > 0);
  }
}

// The value product of the columns from `Column` on: in widths that exist, none of which starts within a panel.
template <class Config, int Column>
__device__ __forceinline__ void multiply_columns(float (&total)[Config::kHead / 2], const std::uint32_t* weights,
                                                 std::uint32_t values) {
  constexpr int left = Config::kHead - Column;
  if constexpr (left > 0) {
    constexpr int width = left >= 128 ? 128 : left >= 64 ? 64 : left >= 32 ? 32 : 16;
    constexpr int inside = Column % 64 * 2;  // bytes; columns of one panel lie in its 128-byte rows
    ValueProduct<typename Config::Element, width>::run(
        total + Column / 2, weights,
        mn_major_tile(values + Column / 64 * Config::kKeyPanel + inside, Config::kEightKeys, Config::kKeyPanel));
    multiply_columns<Config, Column + width>(total, weights, values);
  }
}

// total += P V
template <class Config>
__device__ __forceinline__ void multiply_values(float (&total)[Config::kHead / 2],
                                                const std::uint32_t (&weights)[Config::kKeys / 4],
                                                std::uint32_t values) {
#pragma unroll
  for (int step = 0; step < Config::kKeys / 16; ++step) {
    multiply_columns<Config, 0>(total, weights + 4 * step, values + step * 2 * Config::kEightKeys);
  }
}

}  // namespace llm_kernels::cuda::attention
