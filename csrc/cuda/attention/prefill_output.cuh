// Writes the rows of a piece: division by the weights, sinks, log-sum-exp.
#pragma once

#include "cuda/attention/prefill_config.cuh"
#include "cuda/attention/prefill_softmax.cuh"

namespace llm_kernels::cuda::attention {

// The four threads of a row each hold two columns of each of four runs of eight; afterwards each holds one whole run.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&x)[4], int member) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const bool upper = member & bit;
      const std::uint32_t sent = upper ? x[i] : x[i | bit];
      const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, sent, bit);
      if (upper) {
        x[i] = got;
      } else {
        x[i | bit] = got;
      }
    }
  }
}

// Divides by the weights and writes the rows of this thread that are query tokens of the piece.
template <class Config>
__device__ __forceinline__ void write_rows(const PrefillParams& params, const Piece& piece,
                                           const float (&total)[Config::kHead / 2], const float (&maximum)[2],
                                           const float (&weight)[2], int first_row, float scale_log2) {
  using T = typename Config::Query;
  const int member = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half;
    const int query = row / params.group, head = piece.kv_head * params.group + row % params.group;
    const bool is_inside = query < piece.num_tokens;
    float sum = weight[half];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const float peak = maximum[half] * scale_log2;
    if (params.sinks != nullptr && is_inside && sum > 0.0f) {
      sum += exp2_fast(params.sinks[head] * 1.4426950408889634f - peak);
    }
    float share = sum > 0.0f ? 1.0f / sum : 0.0f;
    if constexpr (Config::kIsWidened) {
      if (params.value_scale != nullptr) share *= params.value_scale[piece.kv_head];
    }
    const std::int64_t token = piece.first_token + query;
    if (params.log_sum_exp != nullptr && is_inside && member == 0) {
      params.log_sum_exp[static_cast<std::int64_t>(head) * params.num_tokens + token] =
          sum > 0.0f ? (peak + log2f(sum)) * 0.6931471805599453f : -INFINITY;
    }
    T* to = static_cast<T*>(params.out) + token * params.out_stride_token + head * params.out_stride_head;
#pragma unroll
    for (int run = 0; run < Config::kHead / 32; ++run) {
      std::uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 16 * run + 4 * i + 2 * half;
        x[i] = packed<T>(total[at] * share, total[at + 1] * share);
      }
      transpose_quad(x, member);
      if (is_inside) *reinterpret_cast<uint4*>(to + 32 * run + 8 * member) = make_uint4(x[0], x[1], x[2], x[3]);
    }
#pragma unroll
    for (int i = Config::kHead / 32 * 4; i < Config::kHead / 8; ++i) {  // head sizes that are no multiple of 32
      const int at = 4 * i + 2 * half;
      const std::uint32_t x = packed<T>(total[at] * share, total[at + 1] * share);
      if (is_inside) *reinterpret_cast<std::uint32_t*>(to + 8 * i + 2 * member) = x;
    }
  }
}

}  // namespace llm_kernels::cuda::attention
