// The router's kernel: the eight blocks of a cluster share the columns of 16 tokens and W, add up their logits through
// each other's shared memory, and choose experts for two tokens each. Knows nothing of launching.
//
// A sum does not mind the order of its terms: a lane reads 16 bytes of a row of W and of x at a time, which become its
// own parts of two mma operands; what it reads first of W it reads while earlier kernels still run.
#pragma once

#include <cuda_bf16.h>

#include "cuda/experts/choice.cuh"
#include "cuda/hopper.cuh"

namespace llm_kernels::cuda::experts {

constexpr int kRouterBlocks = 8;  // of a cluster
constexpr int kRouterTokens = 16;
constexpr int kRouterThreads = 256;
constexpr int kUnit = 32;  // columns that four lanes read at once

struct RouterParams {
  ChoiceParams choice;
  const __nv_bfloat16* x;
  std::int64_t x_stride;
  const __nv_bfloat16* weight;
  const __nv_bfloat16* bias;
  std::int32_t num_tokens, in_size;
};

__device__ __forceinline__ void multiply_16x8(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                              std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// `Tiles` of eight experts a warp: 64 * Tiles experts.
template <int Tiles>
struct RouterKernel {
  static constexpr int kExperts = 64 * Tiles;
  static constexpr int kUnits = 16 / Tiles > 8 ? 8 : 16 / Tiles;  // under way

  static __device__ void read_weight(uint4 (&data)[kUnits][Tiles], const __nv_bfloat16* from, int in_size, int unit,
                                     int end) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (unit + i >= end) break;
#pragma unroll
      for (int tile = 0; tile < Tiles; ++tile) {
        data[i][tile] = __ldg(
            reinterpret_cast<const uint4*>(from + static_cast<std::int64_t>(8 * tile) * in_size + (unit + i) * kUnit));
      }
    }
  }

  static __device__ void run(const RouterParams& p) {
    __shared__ __align__(16) float parts[kRouterTokens * kExperts];
    __shared__ float logits[2 * kExperts];
    const int rank = cluster_rank(), first_token = blockIdx.x / kRouterBlocks * kRouterTokens;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int num_units = p.in_size / kUnit;
    int unit = num_units * rank / kRouterBlocks;
    const int end = num_units * (rank + 1) / kRouterBlocks;
    const __nv_bfloat16* weight_from = p.weight + static_cast<std::int64_t>(warp * 8 * Tiles + g) * p.in_size + t * 8;
    uint4 data[kUnits][Tiles];
    read_weight(data, weight_from, p.in_size, unit, end);
    let_next_kernel_start();
    wait_for_earlier_kernels();
    const bool is_low = first_token + g < p.num_tokens, is_high = first_token + g + 8 < p.num_tokens;
    const __nv_bfloat16* low_from = p.x + (is_low ? first_token + g : 0) * p.x_stride + t * 8;
    const __nv_bfloat16* high_from = p.x + (is_high ? first_token + g + 8 : 0) * p.x_stride + t * 8;
    float sum[Tiles][4] = {};
    for (; unit < end; unit += kUnits) {
      uint4 low[kUnits], high[kUnits];
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        low[i] = high[i] = make_uint4(0, 0, 0, 0);
        if (unit + i >= end) continue;
        if (is_low) low[i] = *reinterpret_cast<const uint4*>(low_from + (unit + i) * kUnit);
        if (is_high) high[i] = *reinterpret_cast<const uint4*>(high_from + (unit + i) * kUnit);
      }
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (unit + i >= end) break;
        const std::uint32_t first[4] = {low[i].x, high[i].x, low[i].y, high[i].y};
        const std::uint32_t second[4] = {low[i].z, high[i].z, low[i].w, high[i].w};
#pragma unroll
        for (int tile = 0; tile < Tiles; ++tile) {
          multiply_16x8(sum[tile], first, data[i][tile].x, data[i][tile].y);
          multiply_16x8(sum[tile], second, data[i][tile].z, data[i][tile].w);
        }
      }
      read_weight(data, weight_from, p.in_size, unit + kUnits, end);
    }
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      const int expert = (warp * Tiles + tile) * 8 + 2 * t;
      *reinterpret_cast<float2*>(parts + g * kExperts + expert) = make_float2(sum[tile][0], sum[tile][1]);
      *reinterpret_cast<float2*>(parts + (g + 8) * kExperts + expert) = make_float2(sum[tile][2], sum[tile][3]);
    }
    cluster_arrive();
    cluster_wait();
    for (int i = threadIdx.x; i < 2 * kExperts / 4; i += kRouterThreads) {
      const std::uint32_t at = shared_address(parts + 2 * rank * kExperts + 4 * i);
      float4 total = read_cluster(at, 0);
#pragma unroll
      for (int other = 1; other < kRouterBlocks; ++other) {
        const float4 more = read_cluster(at, other);
        total.x += more.x;
        total.y += more.y;
        total.z += more.z;
        total.w += more.w;
      }
      const float values[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float bias = p.bias == nullptr ? 0.0f : __bfloat162float(p.bias[(4 * i + j) % kExperts]);
        logits[4 * i + j] = __bfloat162float(__float2bfloat16_rn(values[j] + bias));
      }
    }
    cluster_arrive();  // the others may still read this block's parts
    __syncthreads();
    const int token = first_token + 2 * rank + warp;
    if (warp < 2 && token < p.num_tokens) {
      const float* own = logits + warp * kExperts;
      choose<kExperts>(p.choice, token, [own](int expert) { return own[expert]; });
    }
    cluster_wait();
  }
};

template <int Tiles>
__global__ void __launch_bounds__(kRouterThreads) __cluster_dims__(kRouterBlocks, 1, 1)
    router_kernel(const __grid_constant__ RouterParams params) {
  RouterKernel<Tiles>::run(params);
}

}  // namespace llm_kernels::cuda::experts
