// The product kernels of bfloat16 for tiles of more tokens.

#include "cuda/gemm/families.h"
#include "cuda/gemm/launch.cuh"

namespace llm_kernels::cuda::gemm {

bool gemm_bf16_many(const LinearArgs& args, const GemmPlan& plan) {
  using T = __nv_bfloat16;
  return launch_if<T, false, 2, 1, 160>(args, plan) || launch_if<T, false, 3, 1, 160>(args, plan) ||
         launch_if<T, false, 2, 1, 192>(args, plan) || launch_if<T, false, 3, 1, 192>(args, plan) ||
         launch_if<T, false, 2, 1, 224>(args, plan) || launch_if<T, false, 3, 1, 224>(args, plan) ||
         launch_if<T, false, 2, 1, 256>(args, plan) || launch_if<T, false, 3, 1, 256>(args, plan);
}

}  // namespace llm_kernels::cuda::gemm
