// What becomes of the sums of a tile of experts' products: scales, gate or weight of the pair, and 16-byte stores to
// where the rows go. Knows nothing of how the sums came about.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "llm_kernels/cuda/grouped_gemm.h"

namespace llm_kernels::cuda::experts {

struct GroupedParams {
  __nv_bfloat16* out;
  std::int64_t out_stride;
  const char* x;
  std::int64_t x_stride_bytes;
  const float* x_scale;
  const float* weight_scale;
  const float* pair_weights;
  const std::int32_t* pairs;
  const std::int32_t* block_experts;
  std::int32_t num_pairs, num_blocks, top_k;
  std::int32_t num_tiles;    // of a block
  std::int32_t num_steps;    // of 128 bytes of a row
  std::int32_t row_bytes;    // of x and W
  std::int32_t out_size;     // columns of `out`
  std::int32_t weight_rows;  // of an expert
};

// Reads where it stands, so that what comes next need not wait for it.
__device__ __forceinline__ std::int32_t read_now(const std::int32_t* from) {
  std::int32_t value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ float read_now(const float* from) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

template <GroupedGate Gate>
__device__ __forceinline__ float activated(float value) {
  if constexpr (Gate == GroupedGate::kSilu) return __fdividef(value, 1.0f + __expf(-value));
  if constexpr (Gate == GroupedGate::kGelu) return 0.5f * value * (1.0f + erff(value * 0.70710678f));
  const float inner = 0.79788456f * (value + 0.044715f * value * value * value);
  return 0.5f * value * (1.0f + tanhf(inner));
}

__device__ __forceinline__ std::uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Four lanes hold four words each; lane t gets word t of all four.
__device__ __forceinline__ uint4 transposed(std::uint32_t w0, std::uint32_t w1, std::uint32_t w2, std::uint32_t w3) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  // Words of the neighbour's parity for one's own.
  const std::uint32_t a = __shfl_xor_sync(0xFFFFFFFFu, odd ? w0 : w1, 1);
  const std::uint32_t b = __shfl_xor_sync(0xFFFFFFFFu, odd ? w2 : w3, 1);
  const std::uint32_t low0 = odd ? a : w0, low1 = odd ? w1 : a;    // word (0 or 1) of lanes 2h, 2h + 1
  const std::uint32_t high0 = odd ? b : w2, high1 = odd ? w3 : b;  // word (2 or 3)
  const std::uint32_t c = __shfl_xor_sync(0xFFFFFFFFu, upper ? low0 : high0, 2);
  const std::uint32_t d = __shfl_xor_sync(0xFFFFFFFFu, upper ? low1 : high1, 2);
  return upper ? make_uint4(c, d, high0, high1) : make_uint4(low0, low1, c, d);
}

// The output of one warpgroup's 64 rows: a thread's sums are those of rows r and r + 8 as wgmma has them.
template <class Config>
struct Output {
  static constexpr bool kFloat8 = sizeof(typename Config::Element) == 1;
  int row, column, expert, pair[2];
  float factor[2], share[2];

  // Begins to read what belongs to the rows; the sums come later.
  __device__ Output(const GroupedParams& p, int first_row, int column, int expert, const int (&pairs)[2])
      : row(first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4),
        column(column),
        expert(expert),
        pair{pairs[0], pairs[1]},
        factor{1.0f, 1.0f},
        share{1.0f, 1.0f} {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int kept = pair[half] < p.num_pairs ? pair[half] : 0;  // read something, keep nothing
      if constexpr (kFloat8) factor[half] = read_now(p.x_scale + (Config::kGated ? kept / p.top_k : row + 8 * half));
      if (!Config::kGated && p.pair_weights != nullptr) share[half] = read_now(p.pair_weights + kept);
    }
  }

  __device__ float2 scale_at(const GroupedParams& p, int at) const {
    if constexpr (!kFloat8) return {1.0f, 1.0f};
    const float* from = p.weight_scale + static_cast<std::int64_t>(expert) * p.weight_rows + at;
    return *reinterpret_cast<const float2*>(from);
  }

  // Columns 8 * j + 2 * (lane % 4) and the next of row `half`, rounded.
  __device__ std::uint32_t word(const GroupedParams& p, const float (&sum)[128], int j, int half) const {
    const int at = min(column + 8 * j, p.out_size - 8) + threadIdx.x % 4 * 2;
    const float2 scale = scale_at(p, at);
    const float a = sum[4 * j + 2 * half] * factor[half] * scale.x;
    const float b = sum[4 * j + 2 * half + 1] * factor[half] * scale.y;
    if constexpr (!Config::kGated) {
      return packed(a * share[half], b * share[half]);
    } else {
      const float2 up_scale = scale_at(p, p.out_size + at);
      const float c = sum[64 + 4 * j + 2 * half] * factor[half] * up_scale.x;
      const float d = sum[64 + 4 * j + 2 * half + 1] * factor[half] * up_scale.y;
      return packed(activated<Config::kGate>(a) * c, activated<Config::kGate>(b) * d);
    }
  }

  __device__ void write(const GroupedParams& p, const float (&sum)[128]) const {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool kept = Config::kGated || pair[half] < p.num_pairs;
      __nv_bfloat16* to = p.out + (Config::kGated ? row + 8 * half : pair[half]) * p.out_stride;
#pragma unroll
      for (int j = 0; j < Config::kOutColumns / 8; j += 4) {
        const uint4 words = transposed(word(p, sum, j, half), word(p, sum, j + 1, half), word(p, sum, j + 2, half),
                                       word(p, sum, j + 3, half));
        const int at = column + 8 * (j + lane);
        if (kept && at < p.out_size) *reinterpret_cast<uint4*>(to + at) = words;
      }
    }
  }
};

}  // namespace llm_kernels::cuda::experts
