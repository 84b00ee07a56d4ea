// The prefill kernels of head size 128 for caches in e4m3.

#include "cuda/attention/prefill_kernels.h"
#include "cuda/attention/prefill_launch.cuh"

namespace llm_kernels::cuda::attention {

cudaError_t prefill_e4m3_128(const PrefillAttentionArgs& args, cudaStream_t stream) {
  if (args.is_half) {
    return launch_prefill<PrefillConfig<__half, 128, 128, 2, 2, false, true, __half, 2>>(args, stream);
  }
  return launch_prefill<PrefillConfig<__half, 128, 128, 2, 2, false, true, __nv_bfloat16, 2>>(args, stream);
}

}  // namespace llm_kernels::cuda::attention
