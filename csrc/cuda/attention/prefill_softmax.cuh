// The online softmax of the two rows that a thread holds of an accumulator of wgmma: rows `lane / 4` and 8 further of
// its warp's 16, of each eight columns two. Knows nothing of pieces or shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/hopper.cuh"

namespace llm_kernels::cuda::attention {

template <class T>
__device__ __forceinline__ std::uint32_t packed(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t packed<__nv_bfloat16>(float low, float high) {
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
template <>
__device__ __forceinline__ std::uint32_t packed<__half>(float low, float high) {
  std::uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// The bounds of the keys that the two rows of a thread see.
struct Bounds {
  int lowest[2], highest[2];
};

template <int Scores>
__device__ __forceinline__ void hide(float (&scores)[Scores], const Bounds& bounds, int first_key) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int low = bounds.lowest[half] - first_key, high = bounds.highest[half] - first_key;
#pragma unroll
    for (int i = 0; i < Scores / 4; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * i + e;
        float& score = scores[4 * i + 2 * half + e];
        score = column >= low && column <= high ? score : -INFINITY;
      }
    }
  }
}

// Replaces scores by weights 2^(scale * (score - maximum)) and returns how far the earlier sums of the rows fade.
template <int Scores>
__device__ __forceinline__ void take_softmax(float (&scores)[Scores], float (&maximum)[2], float (&weight)[2],
                                             float (&fade)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float best = maximum[half];
#pragma unroll
    for (int i = 0; i < Scores / 4; ++i) {
      best = fmaxf(best, fmaxf(scores[4 * i + 2 * half], scores[4 * i + 2 * half + 1]));
    }
    best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, 1));
    best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, 2));
    // A row that has seen no key yet keeps -inf; 0 stands in so that no difference is NaN.
    const float shift = best == -INFINITY ? 0.0f : best * scale;
    fade[half] = exp2_fast(maximum[half] * scale - shift);
    maximum[half] = best;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Scores / 4; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[4 * i + 2 * half + e];
        score = exp2_fast(score * scale - shift);
        sum += score;
      }
    }
    weight[half] = weight[half] * fade[half] + sum;
  }
}

template <int Scores>
__device__ __forceinline__ void cap(float (&scores)[Scores], float scale) {
#pragma unroll
  for (int i = 0; i < Scores; ++i) {
    // tanh(x) = 1 - 2 / (e^2x + 1)
    scores[i] = 1.0f - __fdividef(2.0f, exp2_fast(scores[i] * scale * 2.885390082f) + 1.0f);
  }
}

template <class T, int Scores>
__device__ __forceinline__ void pack_weights(std::uint32_t (&weights)[Scores / 2], const float (&scores)[Scores]) {
#pragma unroll
  for (int i = 0; i < Scores / 2; ++i) weights[i] = packed<T>(scores[2 * i], scores[2 * i + 1]);
}

}  // namespace llm_kernels::cuda::attention
