// What the element-wise ops hand to the kernels of an instruction set: a run of tokens.
#pragma once

#include <cstdint>

#include "llm_kernels/elementwise.h"

namespace llm_kernels {

#define LLM_DECLARE_ELEMENTWISE(isa)                                                              \
  namespace isa {                                                                                 \
  void rms_norm_rows(const RmsNormArgs& args, std::int64_t begin, std::int64_t end);              \
  void rotary_tokens(const RotaryArgs& args, std::int64_t begin, std::int64_t end);               \
  void gated_tokens(const GatedActivationArgs& args, std::int64_t begin, std::int64_t end);       \
  }
LLM_DECLARE_ELEMENTWISE(baseline)
LLM_DECLARE_ELEMENTWISE(avx2)
LLM_DECLARE_ELEMENTWISE(avx512)
#undef LLM_DECLARE_ELEMENTWISE

}  // namespace llm_kernels
