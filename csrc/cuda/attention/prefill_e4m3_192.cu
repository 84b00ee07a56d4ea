// The prefill kernels of head size 192 for caches in e4m3.

#include "cuda/attention/prefill_kernels.h"
#include "cuda/attention/prefill_launch.cuh"

namespace llm_kernels::cuda::attention {

cudaError_t prefill_e4m3_192(const PrefillAttentionArgs& args, cudaStream_t stream) {
  if (args.is_half) {
    return launch_prefill<PrefillConfig<__half, 192, 80, 2, 2, false, false, __half, 1>>(args, stream);
  }
  return launch_prefill<PrefillConfig<__half, 192, 80, 2, 2, false, false, __nv_bfloat16, 1>>(args, stream);
}

}  // namespace llm_kernels::cuda::attention
