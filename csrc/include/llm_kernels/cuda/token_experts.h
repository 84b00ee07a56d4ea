// Mixtures of expert MLPs for a few tokens on Hopper, bound by reading the weights of the chosen experts: each pair of
// token and expert reads them for itself. Knows no framework.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llm_kernels/cuda/grouped_gemm.h"

namespace llm_kernels::cuda {

constexpr int kMostTokenChoices = 32;

// Strides in elements; rows start at multiples of 16 bytes; E and I are multiples of 8. Ids outside of 0 to N - 1 take
// part in nothing.
struct TokenExpertsArgs {
  void* out;  // bfloat16 [T, E]
  std::int64_t out_stride;
  void* inner;    // bfloat16 [T * K, I], contiguous: room for the inner layer
  const void* x;  // bfloat16 [T, E]
  std::int64_t x_stride;
  const void* up;             // bfloat16 [N, 2 * I, E], contiguous, the gate's rows first
  const void* down;           // bfloat16 [N, E, I], contiguous
  const float* pair_weights;  // [T, K]
  const std::int64_t* ids;    // [T, K]
  std::int32_t num_tokens, top_k, num_experts, size, inner_size;  // T, K, N, E, I
  GroupedGate gate;  // not kNone
  bool dependent;    // may start before the kernel ahead of it has ended
  cudaStream_t stream;
};

// Enqueues two kernels. Throws ArgumentError for what they do not take, std::runtime_error where CUDA refuses.
void token_experts(const TokenExpertsArgs& args);

}  // namespace llm_kernels::cuda
