// What becomes of the sums of a product: scale, bias, gated activation, bfloat16. Knows nothing of how they came about.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "llm_kernels/cuda/linear.h"

namespace llm_kernels::cuda {

struct Epilogue {
  __nv_bfloat16* out;
  std::int64_t out_stride;
  const __nv_bfloat16* bias;  // or null
  const float* scale;         // of the tensor (stride 0) or of each row (stride 1), or null
  int scale_stride;
  int num_tokens, num_rows;  // of the output
  LinearGate gate;

  __device__ float2 scaled(int row, float2 sums) const {
    if (scale != nullptr) {
      sums.x *= scale[row * scale_stride];
      sums.y *= scale[(row + 1) * scale_stride];
    }
    if (bias != nullptr) {
      sums.x += __bfloat162float(bias[row]);
      sums.y += __bfloat162float(bias[row + 1]);
    }
    return sums;
  }

  __device__ float activated(float gate_value) const {
    if (gate == LinearGate::kSilu) return gate_value / (1.0f + __expf(-gate_value));
    if (gate == LinearGate::kGelu) return 0.5f * gate_value * (1.0f + erff(gate_value * 0.70710678f));
    const float inner = 0.79788456f * (gate_value + 0.044715f * gate_value * gate_value * gate_value);
    return 0.5f * gate_value * (1.0f + tanhf(inner));
  }

  __device__ void store_pair(int token, int row, float2 value) const {
    *reinterpret_cast<__nv_bfloat162*>(out + token * out_stride + row) = __floats2bfloat162_rn(value.x, value.y);
  }

  // Rows `row` and `row + 1` of one token.
  __device__ void store(int token, int row, float2 sums) const { store_pair(token, row, scaled(row, sums)); }

  // The same of the gate's rows, with the up half's sums, whose first row in W is `up_row`.
  __device__ void store_gated(int token, int row, float2 gates, float2 ups, int up_row) const {
    gates = scaled(row, gates);
    ups = scaled(up_row + row, ups);
    store_pair(token, row, {activated(gates.x) * ups.x, activated(gates.y) * ups.y});
  }
};

}  // namespace llm_kernels::cuda
