// The weight-streaming kernels of bfloat16 weights without a gate.

#include "cuda/linear/families.h"
#include "cuda/linear/launch.cuh"

namespace llm_kernels::cuda {

void linear_bf16(const LinearArgs& args, const LinearPlan& plan) {
  constexpr auto kind = LinearWeight::kBFloat16;
  if (plan.tiles == 1) return launch_for_tokens<1, false, kind, false>(args, plan);
  if (plan.tiles == 2) return launch_for_tokens<2, false, kind, false>(args, plan);
  return launch_for_tokens<4, false, kind, false>(args, plan);
}

}  // namespace llm_kernels::cuda
