// Decode attention at head size 256.
#include "cuda/decode/launch.cuh"

namespace llm_kernels::cuda::decode {

cudaError_t launch_256(const DecodeAttentionArgs& args, cudaStream_t stream) {
  return launch_for_size<256>(args, stream);
}

}  // namespace llm_kernels::cuda::decode
