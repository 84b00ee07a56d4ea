// Shares the tokens of the element-wise ops between threads and picks the kernel of the instruction set in use.

#include "llm_kernels/elementwise.h"

#include <string>

#include "cpu/elementwise/kernel.h"
#include "cpu/parallel.h"

namespace llm_kernels {
namespace {

constexpr std::int64_t kMinElementsPerThread = 16384;

std::int64_t min_rows(std::int64_t row_size) { return kMinElementsPerThread / (row_size > 0 ? row_size : 1) + 1; }

}  // namespace

#ifdef LLM_KERNELS_X86
#define LLM_SELECT(name)                                     \
  (current_isa() >= Isa::kAvx512 ? avx512::name              \
   : current_isa() == Isa::kAvx2 ? avx2::name : baseline::name)
#else
#define LLM_SELECT(name) (baseline::name)
#endif

void rms_norm(const RmsNormArgs& args) {
  const auto kernel = LLM_SELECT(rms_norm_rows);
  parallel_shares(args.num_outer * args.num_inner, min_rows(args.size), args.num_threads,
                  [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end); });
}

void check_positions(const RotaryArgs& args) {
  for (std::int64_t token = 0; token < args.num_tokens; ++token) {
    const std::int64_t position = args.positions[token];
    if (position < 0 || position >= args.num_positions) {
      throw ArgumentError("positions", "position " + std::to_string(position) + " of token " + std::to_string(token) +
                                           " is outside [0, " + std::to_string(args.num_positions) + ")");
    }
  }
}

void rotary_embedding(const RotaryArgs& args) {
  const auto kernel = LLM_SELECT(rotary_tokens);
  parallel_shares(args.num_tokens, min_rows(args.num_heads * args.rot), args.num_threads,
                  [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end); });
}

void gated_activation(const GatedActivationArgs& args) {
  const auto kernel = LLM_SELECT(gated_tokens);
  parallel_shares(args.num_tokens, min_rows(2 * args.size), args.num_threads,
                  [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end); });
}

}  // namespace llm_kernels
