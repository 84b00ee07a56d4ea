// Products of few pairs an expert with the experts' weights on Hopper, bound by reading these; the pairs are sorted within
// the kernel. Knows no framework.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llm_kernels/cuda/grouped_gemm.h"

namespace llm_kernels::cuda {

constexpr int kMostPairs = 4096;
constexpr int kMostPairsExperts = 512;

// With a gate: out[p] = gate(W[e] x[p / top_k]) * (second half of W[e]) x, e = ids[p]. Without: out[p] = weight of the
// pair * (W[e] x[p]). Rows of ids outside of 0 to N - 1 are left as they are.
//
// Strides in elements; rows start at multiples of 16 bytes; I and the columns of `out` are multiples of 8.
struct PairsGemmArgs {
  void* out;  // bfloat16 [P, O / 2] with a gate, else [P, O]
  std::int64_t out_stride;
  const void* x;  // bfloat16 [P / top_k, I] with a gate, else [P, I]
  std::int64_t x_stride;
  const void* weight;         // bfloat16 [N, O, I], contiguous
  const float* pair_weights;  // [P], or null: 1; without a gate only
  const std::int64_t* ids;    // [P]
  std::int32_t num_pairs, top_k;
  std::int32_t num_experts, out_size, in_size;  // N, O, I
  GroupedGate gate;
  bool dependent;  // may start before the kernel ahead of it has ended; reads only W before that
  cudaStream_t stream;
};

// Enqueues the product. Throws ArgumentError for what it does not take, std::runtime_error where CUDA refuses.
void pairs_gemm(const PairsGemmArgs& args);

}  // namespace llm_kernels::cuda
