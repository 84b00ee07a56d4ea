// The fragment kernels of float8 weights with a scale a 128 x 128 block.

#include "cuda/linear/families.h"
#include "cuda/linear/fragment_launch.cuh"

namespace llm_kernels::cuda {

void fragment_fp8_block(const LinearArgs& args, const LinearPlan& plan) { launch_fragments_of<true>(args, plan); }

}  // namespace llm_kernels::cuda
