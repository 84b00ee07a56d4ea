// The prefill kernels of head size 256 for caches in e4m3.

#include "cuda/attention/prefill_kernels.h"
#include "cuda/attention/prefill_launch.cuh"

namespace llm_kernels::cuda::attention {

cudaError_t prefill_e4m3_256(const PrefillAttentionArgs& args, cudaStream_t stream) {
  if (args.is_half) {
    return launch_prefill<PrefillConfig<__half, 256, 64, 2, 2, false, false, __half, 1>>(args, stream);
  }
  return launch_prefill<PrefillConfig<__half, 256, 64, 2, 2, false, false, __nv_bfloat16, 1>>(args, stream);
}

}  // namespace llm_kernels::cuda::attention
