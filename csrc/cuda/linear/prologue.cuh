// How tokens come into shared memory before they are multiplied: as they are, or as the RMS norm of the residual stream,
// to which the last branch's output is added first. Knows nothing of the product.
#pragma once

#include <cuda_bf16.h>

#include "cuda/linear/hopper.cuh"

namespace llm_kernels::cuda {

constexpr int kRowWarps = 8;  // of a block that fetches tokens

// With `weight` or `norm`: x becomes norm(x + residual) * weight; the sum, rounded, goes to `new_residual`.
struct TokenParams {
  const __nv_bfloat16* x;
  std::int64_t x_stride;
  int in_size, num_tokens;
  bool norm;
  float eps;
  const void* norm_weight;  // or null
  bool norm_weight_is_float;
  const __nv_bfloat16* residual;  // or null: nothing is added
  std::int64_t residual_stride;
  __nv_bfloat16* new_residual;  // contiguous rows
};

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ __forceinline__ unsigned pair_of(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  return value;
}

// `Place::at(token, piece)`: where 8 columns of a token go; `Place::order(v)`: the order they take there.
template <class Place>
struct TokenFetch {
  static constexpr int kStep = kRowWarps * 32;

  // Before earlier kernels have ended: the weight of the norm, which none of them writes.
  static __device__ void fetch_norm_weight(const TokenParams& p, float* factors) {
    if (!p.norm) return;
    for (int i = threadIdx.x; i < p.in_size; i += kStep) {
      float factor = 1.0f;
      if (p.norm_weight != nullptr) {
        factor = p.norm_weight_is_float ? __ldg(static_cast<const float*>(p.norm_weight) + i)
                                        : __bfloat162float(static_cast<const __nv_bfloat16*>(p.norm_weight)[i]);
      }
      factors[i] = factor;
    }
  }

  static __device__ uint4 added(const uint4& a, const uint4& b) {
    return {pair_of(low(a.x) + low(b.x), high(a.x) + high(b.x)), pair_of(low(a.y) + low(b.y), high(a.y) + high(b.y)),
            pair_of(low(a.z) + low(b.z), high(a.z) + high(b.z)), pair_of(low(a.w) + low(b.w), high(a.w) + high(b.w))};
  }

  static __device__ float squares(const uint4& v) {
    float sum = low(v.x) * low(v.x) + high(v.x) * high(v.x);
    sum += low(v.y) * low(v.y) + high(v.y) * high(v.y);
    sum += low(v.z) * low(v.z) + high(v.z) * high(v.z);
    return sum + low(v.w) * low(v.w) + high(v.w) * high(v.w);
  }

  static __device__ uint4 normed(const uint4& v, float scale, const float* factor) {
    return {pair_of(low(v.x) * scale * factor[0], high(v.x) * scale * factor[1]),
            pair_of(low(v.y) * scale * factor[2], high(v.y) * scale * factor[3]),
            pair_of(low(v.z) * scale * factor[4], high(v.z) * scale * factor[5]),
            pair_of(low(v.w) * scale * factor[6], high(v.w) * scale * factor[7])};
  }

  // The sum of token and residual; one block of the grid keeps it.
  static __device__ uint4 stream_piece(const TokenParams& p, int token, int piece) {
    const uint4 v = __ldcg(reinterpret_cast<const uint4*>(p.x + token * p.x_stride) + piece);
    if (p.residual == nullptr) return v;
    const uint4 sum = added(v, __ldcg(reinterpret_cast<const uint4*>(p.residual + token * p.residual_stride) + piece));
    if (token % gridDim.x == blockIdx.x) {
      reinterpret_cast<uint4*>(p.new_residual + static_cast<std::int64_t>(token) * p.in_size)[piece] = sum;
    }
    return sum;
  }

  // After earlier kernels have ended. Synchronises the block, `partial`: [tokens][warps].
  static __device__ void fetch(const TokenParams& p, Place place, const float* factors, float* partial) {
    const int pieces = p.in_size / 8;
    for (int token = 0; token < p.num_tokens; ++token) {
      float sum = 0.0f;
      for (int i = threadIdx.x; i < pieces; i += kStep) {
        const uint4 v = stream_piece(p, token, i);
        *place.at(token, i) = p.norm ? v : place.order(v);
        if (p.norm) sum += squares(v);
      }
      if (p.norm) sum = sum_of_warp(sum);
      if (threadIdx.x % 32 == 0) partial[token * kRowWarps + threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (!p.norm) return;
    for (int token = 0; token < p.num_tokens; ++token) {
      float sum = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kRowWarps; ++warp) sum += partial[token * kRowWarps + warp];
      const float scale = rsqrtf(sum / p.in_size + p.eps);
      for (int i = threadIdx.x; i < pieces; i += kStep) {
        uint4* at = place.at(token, i);
        *at = place.order(normed(*at, scale, factors + 8 * i));
      }
    }
    __syncthreads();
  }
};

}  // namespace llm_kernels::cuda
