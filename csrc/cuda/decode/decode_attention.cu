// Chooses the instance of the decode kernel. Knows no framework.
#include "cuda/decode/instances.h"
#include "llm_kernels/cuda/decode_attention.h"

namespace llm_kernels::cuda {

bool has_decode_attention(int head_size) { return head_size == 64 || head_size == 128 || head_size == 256; }

cudaError_t decode_attention(const DecodeAttentionArgs& args, cudaStream_t stream) {
  switch (args.head_size) {
    case 64:
      return decode::launch_64(args, stream);
    case 128:
      return decode::launch_128(args, stream);
    case 256:
      return decode::launch_256(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace llm_kernels::cuda
