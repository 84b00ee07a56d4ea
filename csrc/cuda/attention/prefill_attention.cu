// Chooses the prefill kernel of a head size and number format.

#include "cuda/attention/prefill_kernels.h"
#include "llm_kernels/cuda/prefill_attention.h"

namespace llm_kernels::cuda {
namespace {

using Launch = cudaError_t (*)(const PrefillAttentionArgs&, cudaStream_t);

Launch launch_of(int head_size, bool is_e4m3) {
  switch (head_size) {
    case 64:
      return is_e4m3 ? attention::prefill_e4m3_64 : attention::prefill_64;
    case 80:
      return is_e4m3 ? attention::prefill_e4m3_80 : attention::prefill_80;
    case 96:
      return is_e4m3 ? attention::prefill_e4m3_96 : attention::prefill_96;
    case 128:
      return is_e4m3 ? attention::prefill_e4m3_128 : attention::prefill_128;
    case 192:
      return is_e4m3 ? attention::prefill_e4m3_192 : attention::prefill_192;
    case 256:
      return is_e4m3 ? attention::prefill_e4m3_256 : attention::prefill_256;
    default:
      return nullptr;
  }
}

}  // namespace

bool has_prefill_attention(int head_size) { return launch_of(head_size, false) != nullptr; }

cudaError_t prefill_attention(const PrefillAttentionArgs& args, cudaStream_t stream) {
  const Launch launch = launch_of(args.head_size, args.is_e4m3);
  return launch == nullptr ? cudaErrorInvalidValue : launch(args, stream);
}

}  // namespace llm_kernels::cuda
