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
  const float* token_scale;  // of each token, or null
  std::int64_t token_scale_stride;
  int num_tokens, num_rows;  // of the output
  LinearGate gate;

  __device__ float scaled(int token, int row, float sum) const {
    if (token_scale != nullptr) sum *= token_scale[token * token_scale_stride];
    if (scale != nullptr) sum *= scale[row * scale_stride];
    return bias == nullptr ? sum : sum + __bfloat162float(bias[row]);
  }

  __device__ float activated(float gate_value) const {
    if (gate == LinearGate::kSilu) return gate_value / (1.0f + __expf(-gate_value));
    if (gate == LinearGate::kGelu) return 0.5f * gate_value * (1.0f + erff(gate_value * 0.70710678f));
    const float inner = 0.79788456f * (gate_value + 0.044715f * gate_value * gate_value * gate_value);
    return 0.5f * gate_value * (1.0f + tanhf(inner));
  }

  // The output of row `row`, of which the gate's and the up half's sums are given; that starts at `up_row` of W.
  __device__ float gated(int token, int row, float gate_sum, float up_sum, int up_row) const {
    return activated(scaled(token, row, gate_sum)) * scaled(token, up_row + row, up_sum);
  }

  // Rows `row` to `row + 3` of one token; `row` is a multiple of 4.
  __device__ void store(int token, int row, float4 sums) const {
    store_quad(token, row,
               {scaled(token, row, sums.x), scaled(token, row + 1, sums.y), scaled(token, row + 2, sums.z),
                scaled(token, row + 3, sums.w)});
  }
  __device__ void store_gated(int token, int row, float4 gates, float4 ups, int up_row) const {
    store_quad(token, row,
               {gated(token, row, gates.x, ups.x, up_row), gated(token, row + 1, gates.y, ups.y, up_row),
                gated(token, row + 2, gates.z, ups.z, up_row), gated(token, row + 3, gates.w, ups.w, up_row)});
  }

  // One row of one token.
  __device__ void store_one(int token, int row, float sum) const {
    out[token * out_stride + row] = __float2bfloat16_rn(scaled(token, row, sum));
  }
  __device__ void store_gated_one(int token, int row, float gate_sum, float up_sum, int up_row) const {
    out[token * out_stride + row] = __float2bfloat16_rn(gated(token, row, gate_sum, up_sum, up_row));
  }

  __device__ void store_quad(int token, int row, float4 value) const {
    __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(value.x, value.y), __floats2bfloat162_rn(value.z, value.w)};
    *reinterpret_cast<uint2*>(out + token * out_stride + row) = *reinterpret_cast<const uint2*>(pairs);
  }
};

}  // namespace llm_kernels::cuda
