// Decode attention in even shares at head size 256.
#include "cuda/decode/even_launch.cuh"

namespace llm_kernels::cuda::decode {

cudaError_t launch_even_256(const EvenDecodeArgs& args, cudaStream_t stream) { return launch_even_size<256>(args, stream); }

}  // namespace llm_kernels::cuda::decode
