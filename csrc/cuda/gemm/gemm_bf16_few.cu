// The product kernels of bfloat16 for tiles of up to 128 tokens.

#include "cuda/gemm/families.h"
#include "cuda/gemm/launch.cuh"

namespace llm_kernels::cuda::gemm {

bool gemm_bf16_few(const LinearArgs& args, const GemmPlan& plan) {
  using T = __nv_bfloat16;
  return launch_if<T, false, 1, 1, 64>(args, plan) || launch_if<T, false, 2, 1, 64>(args, plan) ||
         launch_if<T, false, 2, 1, 96>(args, plan) || launch_if<T, false, 1, 1, 128>(args, plan) ||
         launch_if<T, false, 2, 1, 128>(args, plan) || launch_if<T, false, 2, 2, 128>(args, plan) ||
         launch_if<T, false, 3, 1, 128>(args, plan);
}

}  // namespace llm_kernels::cuda::gemm
