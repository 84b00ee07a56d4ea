// Decode attention at head size 64.
#include "cuda/decode/launch.cuh"

namespace llm_kernels::cuda::decode {

cudaError_t launch_64(const DecodeAttentionArgs& args, cudaStream_t stream) {
  return launch_for_size<64>(args, stream);
}

}  // namespace llm_kernels::cuda::decode
