// The weight-streaming kernels of float8 weights with a scale a 128 x 128 block; x stays bfloat16.

#include "cuda/linear/families.h"
#include "cuda/linear/launch.cuh"

namespace llm_kernels::cuda {

void linear_fp8_block(const LinearArgs& args, const LinearPlan& plan) {
  constexpr auto kind = LinearWeight::kFloat8;
  if (plan.tiles == 1) return launch_for_tokens<1, false, kind, true>(args, plan);
  return launch_for_tokens<2, false, kind, true>(args, plan);
}

}  // namespace llm_kernels::cuda
