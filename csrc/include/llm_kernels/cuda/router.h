// The router of a mixture of experts on Hopper: the choice of experts by given logits, and for few tokens logits, scores
// and choice in one kernel. Knows no framework.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llm_kernels::cuda {

constexpr int kMostRouterExperts = 512;
constexpr int kMostRouterChoices = 32;

enum class RouterScoring : std::int32_t { kSoftmax, kSigmoid, kSoftmaxAfter };

struct Choice {
  float* weights;           // [T, K]
  std::int64_t* ids;        // [T, K]
  const float* correction;  // [N] or null: added to the scores for the choice only
  std::int32_t top_k;
  RouterScoring scoring;
  bool renormalize;
  float renormalize_eps, scale;
};

// Strides in elements; rows of x and W start at multiples of 16 bytes; E is a multiple of 32; N is 64, 128, 256 or 512.
struct RouterArgs {
  Choice choice;
  const void* x;  // bfloat16 [T, E]
  std::int64_t x_stride;
  const void* weight;  // bfloat16 [N, E], contiguous
  const void* bias;    // bfloat16 [N] or null: of the logits
  std::int32_t num_tokens, num_experts, in_size;
  bool dependent;  // may start before the kernel ahead of it has ended; reads only W before that
  cudaStream_t stream;
};

struct ChoiceArgs {
  Choice choice;
  const void* logits;  // bfloat16 or float32 [T, N], contiguous rows
  std::int64_t logits_stride;
  bool is_float32;
  std::int32_t num_tokens, num_experts;
  bool dependent;  // as above; reads nothing before that
  cudaStream_t stream;
};

// Enqueue the choice; among equal scores the lowest expert wins. The router's logits are rounded to bfloat16.
// Throw ArgumentError for what they do not take, std::runtime_error where CUDA refuses.
void route(const RouterArgs& args);
void choose_experts(const ChoiceArgs& args);

}  // namespace llm_kernels::cuda
