// The weight-streaming kernels of bfloat16 weights with a gated activation: gate and up rows in one block.

#include "cuda/linear/families.h"
#include "cuda/linear/launch.cuh"

namespace llm_kernels::cuda {

void gated_linear_bf16(const LinearArgs& args, const LinearPlan& plan) {
  constexpr auto kind = LinearWeight::kBFloat16;
  if (plan.tiles == 2) return launch_for_tokens<2, true, kind, false>(args, plan);
  return launch_for_tokens<4, true, kind, false>(args, plan);
}

}  // namespace llm_kernels::cuda
