// The kernel of one to four tokens: a warp owns a few rows of W and reads them with 16-byte loads straight into
// registers, the first of them while earlier kernels still run. Knows nothing of plans and launches.
#pragma once

#include <cuda_bf16.h>

#include "cuda/linear/epilogue.cuh"
#include "cuda/linear/hopper.cuh"
#include "cuda/linear/prologue.cuh"

namespace llm_kernels::cuda {

constexpr int kPiece = 8;     // elements of a 16-byte load

struct RowParams {
  Epilogue epilogue;
  TokenParams tokens;
  const __nv_bfloat16* weight;
  std::int64_t weight_stride;
  int up_row;  // with a gate: first row of the up half
};

__device__ __forceinline__ uint4 read_once(const __nv_bfloat16* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// Tokens one after the other, columns in order.
struct PlainPlace {
  uint4* tokens;
  int pieces;  // of a token
  __device__ uint4* at(int token, int piece) const { return tokens + token * pieces + piece; }
  __device__ uint4 order(const uint4& v) const { return v; }
};

// A warp owns `Rows` rows and has `Unroll` loads of each under way. With a gate, half of them are rows of the up half.
// `Tokens` tokens are computed, of which the first `num_tokens` are real; what becomes of the others is not kept.
template <int Tokens, int Rows, int Unroll, bool Gated>
struct RowKernel {
  static constexpr int kOutRows = Gated ? Rows / 2 : Rows;  // of the output, a warp

  static __device__ const __nv_bfloat16* row_start(const RowParams& p, int first, int row) {
    const int half = row % kOutRows;
    const int kept = min(first + half, p.epilogue.num_rows - 1);  // rows beyond the end: read something, keep nothing
    return p.weight + (row / kOutRows * p.up_row + kept) * p.weight_stride;
  }

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

  // Each lane stores one value.
  static __device__ void finish(const RowParams& p, int first, const float (&sums)[Tokens][Rows]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int token = 0; token < Tokens; ++token) {
#pragma unroll
      for (int row = 0; row < kOutRows; ++row) {
        if (lane != token * kOutRows + row) continue;
        if (token >= p.epilogue.num_tokens || first + row >= p.epilogue.num_rows) continue;
        if constexpr (Gated) {
          p.epilogue.store_gated_one(token, first + row, sums[token][row], sums[token][kOutRows + row], p.up_row);
        } else {
          p.epilogue.store_one(token, first + row, sums[token][row]);
        }
      }
    }
  }

  static __device__ void run(const RowParams& p) {
    extern __shared__ uint4 tokens[];
    __shared__ float partial[Tokens * kRowWarps];
    const int lane = threadIdx.x % 32, first = (blockIdx.x * kRowWarps + threadIdx.x / 32) * kOutRows;
    const int pieces = p.tokens.in_size / kPiece;
    float* factors = reinterpret_cast<float*>(tokens + Tokens * pieces);
    const __nv_bfloat16* start[Rows];
    uint4 data[Unroll][Rows];
#pragma unroll
    for (int row = 0; row < Rows; ++row) start[row] = row_start(p, first, row);
#pragma unroll
    for (int at = 0; at < Unroll; ++at) {
#pragma unroll
      for (int row = 0; row < Rows; ++row) {
        const int piece = at * 32 + lane;
        if (piece < pieces) data[at][row] = read_once(start[row] + piece * kPiece);
      }
    }
    let_next_kernel_start();
    using Fetch = TokenFetch<PlainPlace>;
    Fetch::fetch_norm_weight(p.tokens, factors);
    wait_for_earlier_kernels();
    Fetch::fetch(p.tokens, PlainPlace{tokens, pieces}, factors, partial);
    float sums[Tokens][Rows] = {};
    for (int base = lane; base < pieces; base += 32 * Unroll) {
#pragma unroll
      for (int at = 0; at < Unroll; ++at) {
        const int piece = base + at * 32, next = piece + 32 * Unroll;
        if (piece < pieces) {
#pragma unroll
          for (int token = 0; token < Tokens; ++token) {
            const uint4 values = tokens[token * pieces + piece];
#pragma unroll
            for (int row = 0; row < Rows; ++row) sums[token][row] = dot(data[at][row], values, sums[token][row]);
          }
        }
        if (next < pieces) {
#pragma unroll
          for (int row = 0; row < Rows; ++row) data[at][row] = read_once(start[row] + next * kPiece);
        }
      }
    }
#pragma unroll
    for (int token = 0; token < Tokens; ++token) {
#pragma unroll
      for (int row = 0; row < Rows; ++row) sums[token][row] = sum_of_warp(sums[token][row]);
    }
    finish(p, first, sums);
  }
};

template <int Tokens, int Rows, int Unroll, bool Gated>
__global__ void __launch_bounds__(kRowWarps * 32) row_kernel(const __grid_constant__ RowParams params) {
  RowKernel<Tokens, Rows, Unroll, Gated>::run(params);
}

}  // namespace llm_kernels::cuda
