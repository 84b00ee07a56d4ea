// The choice of experts by a warp: scores of a token's logits, the best of them, their weights. Knows nothing of where
// logits come from.
#pragma once

#include <cstdint>

#include "llm_kernels/cuda/router.h"

namespace llm_kernels::cuda::experts {

struct ChoiceParams {
  float* weights;
  std::int64_t* ids;
  const float* correction;
  std::int32_t top_k;
  RouterScoring scoring;
  bool renormalize;
  float renormalize_eps, scale;
};

// Numbers in the order of the floats; NaN comes before all.
__device__ __forceinline__ std::uint32_t order_of(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  if (value != value) return 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  return value;
}

__device__ __forceinline__ float warp_maximum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  return value;
}

// Chooses for a token by its logits; one warp. `logit(expert)`: those of this lane's experts.
template <int Experts, class Logit>
__device__ void choose(const ChoiceParams& p, std::int64_t token, const Logit& logit) {
  constexpr int kPerLane = Experts / 32;
  const int lane = threadIdx.x % 32;
  float score[kPerLane];
  std::uint32_t order[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) score[i] = logit(32 * i + lane);
  if (p.scoring == RouterScoring::kSoftmax) {
    float maximum = score[0], total = 0.0f;
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) maximum = fmaxf(maximum, score[i]);
    maximum = warp_maximum(maximum);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = expf(score[i] - maximum);
      total += score[i];
    }
    total = warp_sum(total);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] = score[i] / total;
  } else if (p.scoring == RouterScoring::kSigmoid) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] = 1.0f / (1.0f + expf(-score[i]));
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    order[i] = order_of(p.correction == nullptr ? score[i] : score[i] + p.correction[32 * i + lane]);
  }
  int chosen = 0;  // of this lane's choice
  float weight = 0.0f;
  unsigned taken = 0;  // a bit for each of this lane's experts
  for (int k = 0; k < p.top_k; ++k) {
    std::uint32_t best = 0;
    int expert = Experts;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (taken >> i & 1) continue;
      if (expert == Experts || order[i] > best) {
        best = order[i];
        expert = 32 * i + lane;
      }
    }
    const std::uint32_t highest = __reduce_max_sync(0xFFFFFFFFu, expert < Experts ? best : 0u);
    expert = __reduce_min_sync(0xFFFFFFFFu, static_cast<unsigned>(best == highest ? expert : Experts));
    if (expert % 32 == lane) taken |= 1u << (expert / 32);
    float own = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) own = expert / 32 == i ? score[i] : own;
    own = __shfl_sync(0xFFFFFFFFu, own, expert % 32);
    if (lane == k) {
      chosen = expert;
      weight = own;
    }
  }
  const bool is_choice = lane < p.top_k;
  if (p.scoring == RouterScoring::kSoftmaxAfter) {
    const float maximum = warp_maximum(is_choice ? weight : -INFINITY);
    const float power = is_choice ? expf(weight - maximum) : 0.0f;
    weight = power / warp_sum(power);
  }
  if (p.renormalize) weight = weight / (warp_sum(is_choice ? weight : 0.0f) + p.renormalize_eps);
  if (is_choice) {
    p.weights[token * p.top_k + lane] = weight * p.scale;
    p.ids[token * p.top_k + lane] = chosen;
  }
}

}  // namespace llm_kernels::cuda::experts
