// Products of many tokens with the weights of their experts on Hopper, in blocks of 128 rows of one expert. Knows no
// framework and nothing of how the rows were sorted.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llm_kernels::cuda {

constexpr int kGroupedBlockRows = 128;

enum class GroupedGate : std::int32_t { kNone, kSilu, kGelu, kGeluTanh };

// Row r of the sorted blocks holds pair `pairs[r]` (or none: a number from `num_pairs` on, at the end of a block);
// block b belongs to expert `block_experts[b]`, -1 after the last one.
//
// With a gate: inner[r] = gate(W[e] x[pair / top_k]) * (second half of W[e]) x, the rows of x gathered by token.
// Without: out[pair] = weight of the pair * (W[e] x[r]), the rows of x sorted, those of pairs scattered.
//
// Strides in elements; rows start at multiples of 16 bytes; I is a multiple of 8 (float8: 16), the columns of `out` of 8.
struct GroupedGemmArgs {
  void* out;  // bfloat16: [num_blocks * 128, O / 2] with a gate, else [num_pairs, O]
  std::int64_t out_stride;
  const void* x;  // bfloat16 or e4m3: [T, I] with a gate, else [num_blocks * 128, I]
  std::int64_t x_stride;
  const void* weight;  // as x: [N, O, I], contiguous
  const float* x_scale;       // e4m3: one a row of x, else null
  const float* weight_scale;  // e4m3: one a row of W, [N, O] contiguous, else null
  const float* pair_weights;  // [num_pairs], or null: 1; without a gate only
  const std::int32_t* pairs;          // [num_blocks * 128]
  const std::int32_t* block_experts;  // [num_blocks]
  std::int32_t num_pairs, top_k, num_blocks;
  std::int32_t num_experts, out_size, in_size;  // N, O, I
  std::int64_t num_x_rows;
  GroupedGate gate;
  bool is_float8;
  bool dependent;  // may start before the kernel ahead of it has ended; reads nothing before that
  cudaStream_t stream;
};

// Enqueues the product. Throws ArgumentError for what it does not take, std::runtime_error where CUDA refuses.
void grouped_gemm(const GroupedGemmArgs& args);

}  // namespace llm_kernels::cuda
