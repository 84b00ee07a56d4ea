// The prefill kernels of head size 64.

#include "cuda/attention/prefill_kernels.h"
#include "cuda/attention/prefill_launch.cuh"

namespace llm_kernels::cuda::attention {

cudaError_t prefill_64(const PrefillAttentionArgs& args, cudaStream_t stream) {
  if (args.is_half) return launch_prefill<PrefillConfig<__half, 64, 128, 3, 3, true, false>>(args, stream);
  return launch_prefill<PrefillConfig<__nv_bfloat16, 64, 128, 3, 3, true, false>>(args, stream);
}

}  // namespace llm_kernels::cuda::attention
