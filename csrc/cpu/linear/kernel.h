// What the linear op hands to the kernel of an instruction set: a run of tokens and a run of outputs.
#pragma once

#include <cstdint>

#include "llm_kernels/linear.h"

namespace llm_kernels {

// Outputs that are computed together: runs begin at multiples of it.
constexpr std::int64_t kLinearOutputs = 4;

using LinearKernel = void (*)(const LinearArgs& args, std::int64_t token_begin, std::int64_t token_end,
                              std::int64_t out_begin, std::int64_t out_end);

#define LLM_DECLARE_LINEAR(isa)                                                                     \
  namespace isa {                                                                                   \
  void linear_tile(const LinearArgs& args, std::int64_t token_begin, std::int64_t token_end,        \
                   std::int64_t out_begin, std::int64_t out_end);                                   \
  }
LLM_DECLARE_LINEAR(baseline)
LLM_DECLARE_LINEAR(avx2)
LLM_DECLARE_LINEAR(avx512)
#undef LLM_DECLARE_LINEAR

}  // namespace llm_kernels
