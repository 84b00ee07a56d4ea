// The batch-invariant linear layer: shares its outputs between threads and picks the kernel.

#include "llm_kernels/linear.h"

#include <algorithm>

#include "cpu/linear/kernel.h"
#include "cpu/parallel.h"

namespace llm_kernels {
namespace {

// Tokens whose inputs stay in a near cache while some outputs of all of them are computed.
constexpr std::int64_t kTokens = 48;
constexpr std::int64_t kOutputsPerItem = 64;
static_assert(kOutputsPerItem % kLinearOutputs == 0, "which outputs are computed together must not depend on threads");

InvariantKernel kernel_for(Isa isa) {
  switch (isa) {
#ifdef LLM_KERNELS_X86
    case Isa::kAmx:
    case Isa::kAvx512:
      return avx512::invariant_tile;
    case Isa::kAvx2:
      return avx2::invariant_tile;
#endif
    default:
      return baseline::invariant_tile;
  }
}

}  // namespace

void invariant_linear(const LinearArgs& args) {
  const InvariantKernel kernel = kernel_for(current_isa());
  const std::int64_t items = (args.out_size + kOutputsPerItem - 1) / kOutputsPerItem;
  parallel_items(items, args.num_threads, [&](std::int64_t item) {
    const std::int64_t out_begin = item * kOutputsPerItem;
    const std::int64_t out_end = std::min(out_begin + kOutputsPerItem, args.out_size);
    for (std::int64_t token = 0; token < args.num_tokens; token += kTokens) {
      kernel(args, token, std::min(token + kTokens, args.num_tokens), out_begin, out_end);
    }
  });
}

}  // namespace llm_kernels
