// Matrix products on the CPU whose rows do not depend on each other. Knows no framework.
#pragma once

#include <cstdint>

#include "llm_kernels/common.h"

namespace llm_kernels {

// out[t] = weight x[t] + bias for T rows, float32 inside, rounded once. Every output is summed in the same order
// whatever T is and wherever its row stands: a row has the same bits alone and among others.
struct LinearArgs {
  void* out;  // [T, F]
  std::int64_t out_stride;
  const void* x;  // [T, E]
  std::int64_t x_stride;
  const void* weight;  // [F, E]
  std::int64_t weight_stride;
  const void* bias;  // [F]; null: none
  DType dtype;       // of all of them
  std::int64_t num_tokens, in_size, out_size;
  int num_threads;
};
void linear(const LinearArgs& args);

}  // namespace llm_kernels
