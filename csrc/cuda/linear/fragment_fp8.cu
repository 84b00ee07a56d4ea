// The fragment kernels of float8 weights with one scale or one an output row.

#include "cuda/linear/families.h"
#include "cuda/linear/fragment_launch.cuh"

namespace llm_kernels::cuda {

void fragment_fp8(const LinearArgs& args, const LinearPlan& plan) { launch_fragments_of<false>(args, plan); }

}  // namespace llm_kernels::cuda
