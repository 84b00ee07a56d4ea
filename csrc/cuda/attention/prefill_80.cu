// The prefill kernels of head size 80.

#include "cuda/attention/prefill_kernels.h"
#include "cuda/attention/prefill_launch.cuh"

namespace llm_kernels::cuda::attention {

cudaError_t prefill_80(const PrefillAttentionArgs& args, cudaStream_t stream) {
  if (args.is_half) return launch_prefill<PrefillConfig<__half, 80, 128, 2, 3, true, true>>(args, stream);
  return launch_prefill<PrefillConfig<__nv_bfloat16, 80, 128, 2, 3, true, true>>(args, stream);
}

}  // namespace llm_kernels::cuda::attention
