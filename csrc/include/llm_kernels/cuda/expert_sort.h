// Sorts many pairs of token and expert by expert into blocks on Hopper, in two kernels. Knows no framework.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llm_kernels::cuda {

constexpr int kSortChunk = 1024;  // pairs that a block of threads places
constexpr int kMostSortExperts = 512;

struct ExpertSortArgs {
  const std::int64_t* ids;      // [P]; those outside of 0 to N - 1 are left out
  std::int32_t* counts;         // [ceil(P / 1024), N]: room
  std::int32_t* pairs;          // [B * block_rows]: pairs by expert, in their order; P where there is none
  std::int32_t* block_experts;  // [B]: the expert of a block; -1: no block
  std::int32_t num_pairs, num_experts, num_blocks, block_rows;
  bool dependent;  // may start before the kernel ahead of it has ended; reads nothing before that
  cudaStream_t stream;
};

// B must suffice however the pairs fall. Throws ArgumentError for what it does not take, std::runtime_error where CUDA
// refuses.
void sort_by_expert(const ExpertSortArgs& args);

}  // namespace llm_kernels::cuda
