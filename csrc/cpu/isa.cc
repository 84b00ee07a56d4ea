// The instruction set in use: asked of the processor once, lowered by tests.

#include <atomic>

#include "llm_kernels/common.h"

namespace llm_kernels {
namespace {

Isa best_isa() {
#ifdef LLM_KERNELS_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kBaseline;
}

std::atomic<Isa>& isa_in_use() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

Isa current_isa() { return isa_in_use().load(std::memory_order_relaxed); }

void force_isa(Isa isa) {
  if (isa > best_isa()) {
    throw ArgumentError("isa", std::string("this processor does not run ") + isa_name(isa));
  }
  isa_in_use().store(isa);
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    default:
      return "baseline";
  }
}

}  // namespace llm_kernels
