// The kernels of mixtures of experts for a few tokens. Up: a warp multiplies a token with one row of the gate and one of
// the up half of an expert. Down: a block has a few outputs of a token and reads their rows of all chosen experts into
// shared memory while the kernel before it still runs. Knows nothing of launching.
#pragma once

#include <cuda_bf16.h>

#include "cuda/experts/grouped_output.cuh"
#include "cuda/hopper.cuh"
#include "llm_kernels/cuda/token_experts.h"

namespace llm_kernels::cuda::experts {

constexpr int kUpWarps = 4;
constexpr int kUpLoads = 8;  // of 16 bytes a lane and row, under way
constexpr int kDownWarps = 8;
constexpr int kPieceColumns = 8;  // of 16 bytes

struct TokenParams {
  __nv_bfloat16* out;
  std::int64_t out_stride;
  __nv_bfloat16* inner;
  const __nv_bfloat16* x;
  std::int64_t x_stride;
  const __nv_bfloat16* up;
  const __nv_bfloat16* down;
  const float* pair_weights;
  const std::int64_t* ids;
  std::int32_t top_k, num_experts, size, inner_size;
  std::int32_t rows;  // outputs of a block of the down kernel
  GroupedGate gate;
};

__device__ __forceinline__ uint4 read_weight_once(const __nv_bfloat16* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

__device__ __forceinline__ float low_half(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ __forceinline__ float dot(const uint4& a, const uint4& b, float sum) {
  sum = fmaf(low_half(a.x), low_half(b.x), sum);
  sum = fmaf(high_half(a.x), high_half(b.x), sum);
  sum = fmaf(low_half(a.y), low_half(b.y), sum);
  sum = fmaf(high_half(a.y), high_half(b.y), sum);
  sum = fmaf(low_half(a.z), low_half(b.z), sum);
  sum = fmaf(high_half(a.z), high_half(b.z), sum);
  sum = fmaf(low_half(a.w), low_half(b.w), sum);
  return fmaf(high_half(a.w), high_half(b.w), sum);
}

__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  return value;
}

__device__ __forceinline__ bool is_expert(const TokenParams& p, std::int64_t id) {
  return id >= 0 && id < p.num_experts;
}

__global__ void __launch_bounds__(kUpWarps * 32) token_up_kernel(const __grid_constant__ TokenParams p) {
  wait_for_earlier_kernels();
  // After the wait: that the next kernel runs then tells it that the ids are complete.
  let_next_kernel_start();
  const int pair = blockIdx.y, row = blockIdx.x * kUpWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t expert = __ldcg(p.ids + pair);
  if (!is_expert(p, expert) || row >= p.inner_size) return;
  const __nv_bfloat16* gate_from = p.up + (expert * 2 * p.inner_size + row) * p.size;
  const __nv_bfloat16* up_from = gate_from + static_cast<std::int64_t>(p.inner_size) * p.size;
  const __nv_bfloat16* x_from = p.x + pair / p.top_k * p.x_stride;
  const int pieces = p.size / kPieceColumns;
  float gate_sum = 0.0f, up_sum = 0.0f;
  for (int base = lane; base < pieces; base += 32 * kUpLoads) {
    uint4 gate[kUpLoads], up[kUpLoads];
#pragma unroll
    for (int i = 0; i < kUpLoads; ++i) {
      const int piece = base + 32 * i;
      if (piece >= pieces) continue;
      gate[i] = read_weight_once(gate_from + piece * kPieceColumns);
      up[i] = read_weight_once(up_from + piece * kPieceColumns);
    }
#pragma unroll
    for (int i = 0; i < kUpLoads; ++i) {
      const int piece = base + 32 * i;
      if (piece >= pieces) continue;
      const uint4 x = reinterpret_cast<const uint4*>(x_from)[piece];
      gate_sum = dot(gate[i], x, gate_sum);
      up_sum = dot(up[i], x, up_sum);
    }
  }
  gate_sum = sum_of_lanes(gate_sum);
  up_sum = sum_of_lanes(up_sum);
  if (lane == 0) {
    p.inner[static_cast<std::int64_t>(pair) * p.inner_size + row] =
        __float2bfloat16_rn(activated(p.gate, gate_sum) * up_sum);
  }
}

__device__ __forceinline__ void copy_bytes(std::uint32_t to, const void* from, unsigned bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// One warp: begins to read the rows `first` to `first + rows - 1` of all experts of a token.
__device__ __forceinline__ void read_down(const TokenParams& p, int token, int first, int rows, std::uint32_t to,
                                          std::uint32_t barrier) {
  const int lane = threadIdx.x % 32;
  // Past the first cache, which may be stale: this is read before the wait.
  const std::int64_t id = lane < p.top_k ? __ldcg(p.ids + static_cast<std::int64_t>(token) * p.top_k + lane) : -1;
  const int count = __popc(__ballot_sync(0xFFFFFFFFu, is_expert(p, id)));
  const unsigned row_bytes = p.inner_size * sizeof(__nv_bfloat16);
  if (lane == 0) barrier_expect(barrier, count * rows * row_bytes);
  __syncwarp();
  for (int row = 0; row < rows; ++row) {
    if (!is_expert(p, id)) continue;
    const __nv_bfloat16* from = p.down + (id * p.size + first + row) * p.inner_size;
    copy_bytes(to + (row * p.top_k + lane) * row_bytes, from, row_bytes, barrier);
  }
}

__global__ void __launch_bounds__(kDownWarps * 32, 3) token_down_kernel(const __grid_constant__ TokenParams p) {
  extern __shared__ uint4 shared[];  // rows of W by output and choice, then the inner rows
  __shared__ std::uint64_t barrier_place;
  __shared__ float shares[kMostTokenChoices];  // of the choices; 0 for no expert
  const int token = blockIdx.y, first = blockIdx.x * p.rows, rows = min(p.rows, p.size - first);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pieces = p.inner_size / kPieceColumns;
  const std::uint32_t barrier = shared_address(&barrier_place);
  if (warp == 0) {
    if (lane == 0) {
      barrier_init(barrier, 1);
      barrier_init_fence();
    }
    __syncwarp();
    read_down(p, token, first, rows, shared_address(shared), barrier);
  }
  let_next_kernel_start();
  wait_for_earlier_kernels();
  uint4* inner = shared + p.rows * p.top_k * pieces;
  const std::int64_t first_pair = static_cast<std::int64_t>(token) * p.top_k;
  const auto* inner_from = reinterpret_cast<const uint4*>(p.inner) + first_pair * pieces;
  for (int i = threadIdx.x; i < p.top_k * pieces; i += kDownWarps * 32) inner[i] = __ldcg(inner_from + i);
  if (threadIdx.x < p.top_k) {
    const bool is_real = is_expert(p, __ldcg(p.ids + first_pair + threadIdx.x));
    shares[threadIdx.x] = is_real ? p.pair_weights[first_pair + threadIdx.x] : 0.0f;
  }
  __syncthreads();
  barrier_wait(barrier, 0);
  for (int row = warp; row < rows; row += kDownWarps) {
    float total = 0.0f;
    for (int choice = 0; choice < p.top_k; ++choice) {
      const float share = shares[choice];
      if (share == 0.0f) continue;
      const uint4* weight = shared + (row * p.top_k + choice) * pieces;
      float sum = 0.0f;
#pragma unroll 3
      for (int piece = lane; piece < pieces; piece += 32) sum = dot(weight[piece], inner[choice * pieces + piece], sum);
      total = fmaf(share, sum, total);
    }
    total = sum_of_lanes(total);
    if (lane == 0) p.out[token * p.out_stride + first + row] = __float2bfloat16_rn(total);
  }
}

}  // namespace llm_kernels::cuda::experts
