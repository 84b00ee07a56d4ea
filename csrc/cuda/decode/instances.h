// The instances of the decode kernels by head size, each compiled for itself.
#pragma once

#include "llm_kernels/cuda/decode_attention.h"

namespace llm_kernels::cuda::decode {

cudaError_t launch_64(const DecodeAttentionArgs& args, cudaStream_t stream);
cudaError_t launch_128(const DecodeAttentionArgs& args, cudaStream_t stream);
cudaError_t launch_256(const DecodeAttentionArgs& args, cudaStream_t stream);

cudaError_t launch_even_64(const EvenDecodeArgs& args, cudaStream_t stream);
cudaError_t launch_even_128(const EvenDecodeArgs& args, cudaStream_t stream);
cudaError_t launch_even_256(const EvenDecodeArgs& args, cudaStream_t stream);

}  // namespace llm_kernels::cuda::decode
