// The weight-streaming kernels of float8 weights and float8 tokens: a scale each, or one an output row and one a token.

#include "cuda/linear/families.h"
#include "cuda/linear/launch.cuh"

namespace llm_kernels::cuda {

void linear_fp8_both(const LinearArgs& args, const LinearPlan& plan) {
  constexpr auto kind = LinearWeight::kFloat8Both;
  if (plan.tiles == 1) return launch_for_tokens<1, false, kind, false>(args, plan);
  if (plan.tiles == 2) return launch_for_tokens<2, false, kind, false>(args, plan);
  return launch_for_tokens<4, false, kind, false>(args, plan);
}

}  // namespace llm_kernels::cuda
