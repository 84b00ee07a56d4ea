// The kernel of one token: a warp owns a few rows of W and reads them with 16-byte loads straight into registers, the
// first of them while earlier kernels still run. Knows nothing of plans and launches.
#pragma once

#include "cuda/hopper.cuh"
#include "cuda/linear/epilogue.cuh"
#include "cuda/linear/tokens.cuh"

namespace llm_kernels::cuda {

struct RowParams {
  Epilogue epilogue;
  TokenParams tokens;
  const __nv_bfloat16* weight;
  std::int64_t weight_stride;
  int up_row;  // with a gate: first row of the up half
};

// Columns in order.
struct PlainPlace {
  uint4* tokens;
  __device__ uint4* at(int, int piece) const { return tokens + piece; }
  __device__ uint4 order(const uint4& v) const { return v; }
};

// A warp owns `Rows` rows and has `Unroll` loads of each under way. With a gate, half of them are rows of the up half.
template <int Rows, int Unroll, bool Gated>
struct RowKernel {
  static constexpr int kOutRows = Gated ? Rows / 2 : Rows;  // of the output, a warp

  static __device__ const __nv_bfloat16* row_start(const RowParams& p, int first, int row) {
    const int kept =
        min(first + row % kOutRows, p.epilogue.num_rows - 1);  // beyond the end: read something, keep nothing
    return p.weight + (row / kOutRows * p.up_row + kept) * p.weight_stride;
  }

  static __device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
  static __device__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }

  static __device__ float dot(uint4 a, uint4 b, float sum) {
    sum = fmaf(low(a.x), low(b.x), sum);
    sum = fmaf(high(a.x), high(b.x), sum);
    sum = fmaf(low(a.y), low(b.y), sum);
    sum = fmaf(high(a.y), high(b.y), sum);
    sum = fmaf(low(a.z), low(b.z), sum);
    sum = fmaf(high(a.z), high(b.z), sum);
    sum = fmaf(low(a.w), low(b.w), sum);
    return fmaf(high(a.w), high(b.w), sum);
  }

  static __device__ float sum_of_warp(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    return value;
  }

  // Each lane stores one row.
  static __device__ void finish(const RowParams& p, int first, const float (&sums)[Rows]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < kOutRows; ++row) {
      if (lane != row || first + row >= p.epilogue.num_rows) continue;
      if constexpr (Gated) {
        p.epilogue.store_gated_one(0, first + row, sums[row], sums[kOutRows + row], p.up_row);
      } else {
        p.epilogue.store_one(0, first + row, sums[row]);
      }
    }
  }

  static __device__ void run(const RowParams& p) {
    extern __shared__ uint4 tokens[];
    const int lane = threadIdx.x % 32, first = (blockIdx.x * kRowWarps + threadIdx.x / 32) * kOutRows;
    const int pieces = p.tokens.in_size / kPiece;
    const __nv_bfloat16* start[Rows];
    uint4 data[Unroll][Rows];
#pragma unroll
    for (int row = 0; row < Rows; ++row) start[row] = row_start(p, first, row);
#pragma unroll
    for (int at = 0; at < Unroll; ++at) {
      const int piece = at * 32 + lane;
      if (piece >= pieces) continue;
#pragma unroll
      for (int row = 0; row < Rows; ++row) data[at][row] = read_once(start[row] + piece * kPiece);
    }
    let_next_kernel_start();
    wait_for_earlier_kernels();
    fetch_tokens(p.tokens, PlainPlace{tokens});
    __syncthreads();
    float sums[Rows] = {};
    for (int base = lane; base < pieces; base += 32 * Unroll) {
#pragma unroll
      for (int at = 0; at < Unroll; ++at) {
        const int piece = base + at * 32, next = piece + 32 * Unroll;
        if (piece < pieces) {
          const uint4 token = tokens[piece];
#pragma unroll
          for (int row = 0; row < Rows; ++row) sums[row] = dot(data[at][row], token, sums[row]);
        }
        if (next < pieces) {
#pragma unroll
          for (int row = 0; row < Rows; ++row) data[at][row] = read_once(start[row] + next * kPiece);
        }
      }
    }
#pragma unroll
    for (int row = 0; row < Rows; ++row) sums[row] = sum_of_warp(sums[row]);
    finish(p, first, sums);
  }
};

template <int Rows, int Unroll, bool Gated>
__global__ void __launch_bounds__(kRowWarps * 32) row_kernel(const __grid_constant__ RowParams params) {
  RowKernel<Rows, Unroll, Gated>::run(params);
}

}  // namespace llm_kernels::cuda
