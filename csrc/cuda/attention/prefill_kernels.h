// The prefill kernels by head size and number format of the caches; each file compiles those of one.
#pragma once

#include "llm_kernels/cuda/prefill_attention.h"

namespace llm_kernels::cuda::attention {

cudaError_t prefill_64(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_80(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_96(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_128(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_192(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_256(const PrefillAttentionArgs& args, cudaStream_t stream);

cudaError_t prefill_e4m3_64(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_e4m3_80(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_e4m3_96(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_e4m3_128(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_e4m3_192(const PrefillAttentionArgs& args, cudaStream_t stream);
cudaError_t prefill_e4m3_256(const PrefillAttentionArgs& args, cudaStream_t stream);

}  // namespace llm_kernels::cuda::attention
