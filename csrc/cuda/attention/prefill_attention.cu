// Chooses the prefill kernel of a head size.

#include "cuda/attention/prefill_kernels.h"
#include "llm_kernels/cuda/prefill_attention.h"

namespace llm_kernels::cuda {
namespace {

using Launch = cudaError_t (*)(const PrefillAttentionArgs&, cudaStream_t);

Launch launch_of(int head_size) {
  switch (head_size) {
    case 64:
      return attention::prefill_64;
    case 96:
      return attention::prefill_96;
    case 128:
      return attention::prefill_128;
    case 192:
      return attention::prefill_192;
    case 256:
      return attention::prefill_256;
    default:
      return nullptr;
  }
}

}  // namespace

bool has_prefill_attention(int head_size) { return launch_of(head_size) != nullptr; }

cudaError_t prefill_attention(const PrefillAttentionArgs& args, cudaStream_t stream) {
  const Launch launch = launch_of(args.head_size);
  return launch == nullptr ? cudaErrorInvalidValue : launch(args, stream);
}

}  // namespace llm_kernels::cuda
