// The functions applied to the gate of a gated layer, in lanes.
#pragma once

#include "cpu/simd/vec.h"
#include "llm_kernels/common.h"

namespace llm_kernels {
namespace LLM_ISA {

constexpr float kInverseSqrt2 = 0.70710678118654752f;
constexpr float kSqrt2OverPi = 0.79788456080286536f;

// Exact GELU is rare; the C library per lane is exact and fast enough.
LLM_INLINE VecF erf(VecF x) {
  VecF result = {};
  for (int i = 0; i < kLanes; ++i) result[i] = __builtin_erff(x[i]);
  return result;
}

LLM_INLINE VecF activate(VecF x, GateKind kind) {
  switch (kind) {
    case GateKind::kSilu:
      return x / (exp(-x) + 1.0f);
    case GateKind::kGelu:
      return 0.5f * x * (erf(x * kInverseSqrt2) + 1.0f);
    default:
      return 0.5f * x * (tanh((x * x * x * 0.044715f + x) * kSqrt2OverPi) + 1.0f);
  }
}

}  // namespace LLM_ISA
}  // namespace llm_kernels
