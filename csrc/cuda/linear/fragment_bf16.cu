// The fragment kernels of bfloat16 weights.

#include "cuda/linear/families.h"
#include "cuda/linear/fragment_launch.cuh"

namespace llm_kernels::cuda {

void fragment_bf16(const LinearArgs& args, const LinearPlan& plan) {
  launch_fragments_of<LinearWeight::kBFloat16, false>(args, plan);
}

}  // namespace llm_kernels::cuda
