// The instances of the decode kernel by head size, each compiled for itself.
#pragma once

#include "llm_kernels/cuda/decode_attention.h"

namespace llm_kernels::cuda::decode {

cudaError_t launch_64(const DecodeAttentionArgs& args, cudaStream_t stream);
cudaError_t launch_128(const DecodeAttentionArgs& args, cudaStream_t stream);
cudaError_t launch_256(const DecodeAttentionArgs& args, cudaStream_t stream);

}  // namespace llm_kernels::cuda::decode
