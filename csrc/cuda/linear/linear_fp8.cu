// The weight-streaming kernels of float8 weights with one scale or one an output row; x stays bfloat16.

#include "cuda/linear/families.h"
#include "cuda/linear/launch.cuh"

namespace llm_kernels::cuda {

void linear_fp8(const LinearArgs& args, const LinearPlan& plan) {
  constexpr auto kind = LinearWeight::kFloat8;
  if (plan.tiles == 1) return launch_for_tokens<1, false, kind, false>(args, plan);
  return launch_for_tokens<2, false, kind, false>(args, plan);
}

}  // namespace llm_kernels::cuda
