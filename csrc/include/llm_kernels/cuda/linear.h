// Matrix products for few tokens on Hopper: y[T, O] = x[T, I] W[O, I]^T, bound by reading W. Knows no framework.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llm_kernels::cuda {

// float8: e4m3; the last: the tokens are float8 too.
enum class LinearWeight : std::int32_t { kBFloat16, kFloat8, kFloat8Both };
enum class LinearScale : std::int32_t { kNone, kTensor, kChannel, kBlock };  // block: 128 x 128
enum class LinearGate : std::int32_t { kNone, kSilu, kGelu, kGeluTanh };

// How a product is cut; there are three kinds of kernel.
// Streamed through shared memory (tiles > 0): a block of the grid owns `tiles` * 64 rows of W and one of `split` parts
// of I; the blocks of a cluster add up their parts through each other's shared memory, in a fixed order. One token
// (rows 1 or 2, bfloat16 only): a warp owns `rows` rows and has `unroll` loads of each under way. Up to 8 tokens (rows
// 8 or 16, float8 weights only): a block owns `rows` rows at a time, a warp an eighth of I of them, `unroll` loads of
// 64 bytes a row under way.
struct LinearPlan {
  std::int32_t tiles;     // 1, 2, 4
  std::int32_t split;     // 1 to 8
  std::int32_t resident;  // the blocks an SM shall hold
  std::int32_t rows;
  std::int32_t unroll;
};

// Strides in elements. I is a multiple of 8 (float8: 16), O of 8; rows start at multiples of 16 bytes; T <= 128.
struct LinearArgs {
  void* out;  // bfloat16 [T, O]; with a gate [T, O / 2]
  std::int64_t out_stride;
  const void* x;  // bfloat16 or float8 [T, I]
  std::int64_t x_stride;
  const float* token_scale;  // of float8 tokens: [T]
  std::int64_t token_scale_stride;
  const void* weight;  // [O, I]; with a gate the gate's rows first
  std::int64_t weight_stride;
  LinearWeight weight_kind;
  const float* scale;  // of float8: one, [O] or [ceil(O / 128), ceil(I / 128)]
  std::int64_t scale_stride;
  LinearScale scale_kind;
  const void* bias;  // bfloat16 [O] or null
  std::int32_t num_tokens, out_size, in_size;
  LinearGate gate;
  LinearPlan plan;  // all 0: by the shape
  bool dependent;   // may start before the kernel ahead of it has ended; reads only W before that
  cudaStream_t stream;
};

// The plan taken where none is given.
LinearPlan plan_linear(const LinearArgs& args);

// Enqueues the product. Throws ArgumentError for what no kernel takes, std::runtime_error where CUDA refuses.
void linear(const LinearArgs& args);

}  // namespace llm_kernels::cuda
