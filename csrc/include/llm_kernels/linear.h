// Linear layers on the CPU over weights as checkpoints hold them: row after row, not rearranged. Knows no framework.
#pragma once

#include <cstdint>

#include "llm_kernels/common.h"

namespace llm_kernels {

// out[t] = weight x[t] + bias for T rows, float32 inside, rounded once.
// Gated: the weight has 2 F rows, those of the gate first, and out[t] = gate(first half) * second half.
struct LinearArgs {
  void* out;  // [T, F]
  std::int64_t out_stride;
  const void* x;  // [T, E]
  std::int64_t x_stride;
  const void* weight;  // [F, E], or [2 * F, E]
  std::int64_t weight_stride;
  const void* bias;  // as many as the weight has rows; null: none
  DType dtype;       // of all of them
  std::int64_t num_tokens, in_size, out_size;
  bool is_gated;
  GateKind gate;
  int num_threads;
};

// The fastest way for the number of rows. The order of the sums depends on it.
void linear(const LinearArgs& args);

// Rows up to which `linear` is meant to be used. It computes more, too, but slower than a library would.
std::int64_t linear_most_tokens(DType dtype);

// Every output is summed in the same order whatever T is and wherever its row stands: a row has the same bits alone
// and among others. Not gated.
void invariant_linear(const LinearArgs& args);

}  // namespace llm_kernels
