// Matrix products of some ten to some hundred e4m3 tokens with e4m3 weights: y[T, O] = x[T, I] W[O, I]^T, each panel of
// rows of W read once for all tokens. Knows no framework.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llm_kernels/cuda/linear.h"

namespace llm_kernels::cuda {

// How a product is cut. A block of the grid owns a panel of 64 * `groups` rows of W, up to `tile` tokens, and one of
// `split` parts of I; the blocks of a cluster add up their parts through each other's shared memory, in a fixed order.
struct PanelPlan {
  std::int32_t groups;    // 2, 3; of bfloat16 tokens 1, 2
  std::int32_t split;     // 1, 2, 4, 8
  std::int32_t tile;      // 64 to 192 in steps of 32; of bfloat16 tokens always 8
  std::int32_t resident;  // the blocks an SM shall hold
};

// Strides in elements. I is a multiple of 16, O of 8 (with a gate of 16); rows start at multiples of 16 bytes.
struct PanelArgs {
  void* out;  // bfloat16 [T, O]; with a gate [T, O / 2]
  std::int64_t out_stride;
  const void* x;  // e4m3 [T, I]; or, up to 8 tokens, bfloat16, which the blocks quantize, a scale a token and 128 columns
  std::int64_t x_stride;
  const float* token_scale;  // [T]; null: x is bfloat16
  std::int64_t token_scale_stride;
  const void* weight;  // e4m3 [O, I]; with a gate the gate's rows first
  std::int64_t weight_stride;
  const float* scale;  // one, or [O]
  bool scale_of_rows;
  const void* bias;  // bfloat16 [O] or null
  std::int32_t num_tokens, out_size, in_size;
  LinearGate gate;  // none but with bfloat16 tokens
  PanelPlan plan;
  bool dependent;  // may start before the kernel ahead of it has ended; reads only W before that
  cudaStream_t stream;
};

// Enqueues the product. Throws ArgumentError for what no kernel takes, std::runtime_error where CUDA refuses.
void fp8_panels(const PanelArgs& args);

}  // namespace llm_kernels::cuda
