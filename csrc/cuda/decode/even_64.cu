// Decode attention in even shares at head size 64.
#include "cuda/decode/even_launch.cuh"

namespace llm_kernels::cuda::decode {

cudaError_t launch_even_64(const EvenDecodeArgs& args, cudaStream_t stream) { return launch_even_size<64>(args, stream); }

}  // namespace llm_kernels::cuda::decode
