// RMS norms, rotary embedding and gated activations on the CPU. Knows no framework.
#pragma once

#include <cstdint>

#include "llm_kernels/common.h"

namespace llm_kernels {

// out[r] = x[r] / rms(x[r]) * weight for `num_outer * num_inner` rows of `size` contiguous elements; the row (i, j)
// starts at i * stride_outer + j * stride_inner. With `residual`, residual += x first and the norm is of the sum.
struct RmsNormArgs {
  void* out;
  std::int64_t out_stride_outer, out_stride_inner;
  const void* x;
  std::int64_t x_stride_outer, x_stride_inner;
  void* residual;  // null: none
  std::int64_t residual_stride_outer, residual_stride_inner;
  DType dtype;
  const void* weight;
  DType weight_dtype;
  std::int64_t num_outer, num_inner, size;
  float eps;
  int num_threads;
};
void rms_norm(const RmsNormArgs& args);

struct RotaryArgs {
  void* x;  // [T, heads, D], in place
  std::int64_t stride_token, stride_head;
  DType dtype;
  const std::int64_t* positions;  // [T]
  const void* cos_sin;            // [P, rot]
  std::int64_t cos_sin_stride;
  DType cos_sin_dtype;
  std::int64_t num_tokens, num_heads, rot, num_positions;
  bool interleaved;
  int num_threads;
};
// Throws ArgumentError, before any write, when a position lies outside the table.
void check_positions(const RotaryArgs& args);
void rotary_embedding(const RotaryArgs& args);

struct GatedActivationArgs {
  void* out;  // [T, I]
  std::int64_t out_stride;
  const void* gate_up;  // [T, 2 * I]
  std::int64_t gate_up_stride;
  DType dtype;
  std::int64_t num_tokens, size;
  GateKind kind;
  int num_threads;
};
void gated_activation(const GatedActivationArgs& args);

}  // namespace llm_kernels
