// The prefill kernels of head size 256.

#include "cuda/attention/prefill_kernels.h"
#include "cuda/attention/prefill_launch.cuh"

namespace llm_kernels::cuda::attention {

cudaError_t prefill_256(const PrefillAttentionArgs& args, cudaStream_t stream) {
  if (args.is_half) return launch_prefill<PrefillConfig<__half, 256, 80, 2, 2, false, false>>(args, stream);
  return launch_prefill<PrefillConfig<__nv_bfloat16, 256, 80, 2, 2, false, false>>(args, stream);
}

}  // namespace llm_kernels::cuda::attention
