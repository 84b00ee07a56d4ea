// The prefill kernels of head size 64.

#include "cuda/attention/prefill_kernels.h"
#include "cuda/attention/prefill_launch.cuh"

namespace llm_kernels::cuda::attention {

cudaError_t prefill_64(const PrefillAttentionArgs& args, cudaStream_t stream) {
  if (args.is_half) return launch_prefill<PrefillConfig<__half, 64, 128, 3, 3, true, true>>(args, stream);
  switch (args.variant % 10) {
    case 1: return launch_prefill<PrefillConfig<__nv_bfloat16, 64, 128, 3, 4, true, true>>(args, stream);
    case 2: return launch_prefill<PrefillConfig<__nv_bfloat16, 64, 128, 3, 4, false, true>>(args, stream);
    case 3: return launch_prefill<PrefillConfig<__nv_bfloat16, 64, 128, 3, 4, true, true, false, true>>(args, stream);
    default: return launch_prefill<PrefillConfig<__nv_bfloat16, 64, 128, 3, 3, true, true>>(args, stream);
  }
}

}  // namespace llm_kernels::cuda::attention
