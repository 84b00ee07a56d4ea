// Chooses the instance of the kernel of even shares. Knows no framework.
#include "cuda/decode/instances.h"
#include "llm_kernels/cuda/decode_attention.h"

namespace llm_kernels::cuda {

cudaError_t decode_attention_even(const EvenDecodeArgs& args, cudaStream_t stream) {
  switch (args.call.head_size) {
    case 64:
      return decode::launch_even_64(args, stream);
    case 128:
      return decode::launch_even_128(args, stream);
    case 256:
      return decode::launch_even_256(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace llm_kernels::cuda
