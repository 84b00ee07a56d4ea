// The linear layer: chooses between few tokens and tiles, and shares the outputs between threads.

#include "llm_kernels/linear.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <new>

#include "cpu/linear/kernel.h"
#include "cpu/parallel.h"

namespace llm_kernels {
namespace {

// Tokens up to which the weight's rows are multiplied one by one.
constexpr std::int64_t kFewTokens = 8;
constexpr std::int64_t kFewTokensBesideTiles = 1;
// More shares than threads, so that a thread which is held up delays the others little.
constexpr std::int64_t kSharesPerThread = 4;
// Packed tokens that stay in a near cache while the panels pass by.
constexpr std::int64_t kPackedBytes = 1 << 20;

FewTokensKernel few_tokens_kernel(Isa isa) {
  switch (isa) {
#ifdef LLM_KERNELS_X86
    case Isa::kAmx:
    case Isa::kAvx512:
      return avx512::few_tokens;
    case Isa::kAvx2:
      return avx2::few_tokens;
#endif
    default:
      return baseline::few_tokens;
  }
}

// Calls body(begin, end) over runs of [0, size) that begin at multiples of `step`.
template <class Body>
void parallel_runs(std::int64_t size, std::int64_t step, int num_threads, const Body& body) {
  const std::int64_t steps = (size + step - 1) / step;
  const std::int64_t runs = std::min<std::int64_t>(steps, num_threads * kSharesPerThread);
  parallel_items(runs, num_threads, [&](std::int64_t run) {
    body(steps * run / runs * step, std::min(steps * (run + 1) / runs * step, size));
  });
}

#ifdef LLM_KERNELS_AMX
using Halves = std::unique_ptr<std::uint16_t, void (*)(void*)>;

// Memory for bfloat16 that begins at a line of the cache.
Halves aligned_halves(std::int64_t count) {
  void* memory = ::operator new(2 * static_cast<std::size_t>(count), std::align_val_t{64});
  return {static_cast<std::uint16_t*>(memory), [](void* at) { ::operator delete(at, std::align_val_t{64}); }};
}

void tiled_linear(const LinearArgs& args) {
  const std::int64_t in_size = round_up(args.in_size, kTileInputs);
  const std::int64_t most = std::max<std::int64_t>(kPackedBytes / (2 * in_size) / 32 * 32, 32);
  const std::int64_t chunk = std::min(most, round_up(args.num_tokens, kTileTokens));
  const Halves packed = aligned_halves(chunk * in_size);
  const std::int64_t panels = (args.out_size + panel_outputs(args) - 1) / panel_outputs(args);
  for (std::int64_t token = 0; token < args.num_tokens; token += chunk) {
    const std::int64_t count = std::min(chunk, args.num_tokens - token);
    parallel_items((count + kTileTokens - 1) / kTileTokens, args.num_threads, [&](std::int64_t block) {
      const std::int64_t first = block * kTileTokens;
      amx::pack_tokens(args, token + first, std::min(kTileTokens, count - first), packed.get() + first * in_size);
    });
    parallel_runs(panels, 1, args.num_threads, [&](std::int64_t begin, std::int64_t end) {
      const Halves scratch = aligned_halves(32 * in_size);
      amx::tiled_panels(args, packed.get(), token, count, begin, end, scratch.get());
    });
  }
}
#endif

bool has_tiles(DType dtype) { return current_isa() == Isa::kAmx && dtype == DType::kBFloat16; }

}  // namespace

std::int64_t linear_most_tokens(DType dtype) {
  return has_tiles(dtype) ? std::numeric_limits<std::int64_t>::max() : kFewTokens;
}

void linear(const LinearArgs& args) {
#ifdef LLM_KERNELS_AMX
  if (has_tiles(args.dtype) && args.num_tokens > kFewTokensBesideTiles) return tiled_linear(args);
#endif
  const FewTokensKernel kernel = few_tokens_kernel(current_isa());
  parallel_runs(args.out_size, kLinearOutputs, args.num_threads,
                [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end); });
}

}  // namespace llm_kernels
