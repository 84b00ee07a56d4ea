// The instruction set in use: asked of the processor once, lowered by tests.

#include <atomic>

#include "llm_kernels/common.h"

#ifdef LLM_KERNELS_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace llm_kernels {
namespace {

#ifdef LLM_KERNELS_AMX
// The kernel gives a process matrix tiles when it asks, since they make its context larger.
bool may_use_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTileBits = (1u << 24) | (1u << 25) | (1u << 22);  // tiles, int8, bfloat16: leaf 7, edx
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & kTileBits) != kTileBits) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

Isa best_isa() {
#ifdef LLM_KERNELS_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
#ifdef LLM_KERNELS_AMX
    if (may_use_tiles()) return Isa::kAmx;
#endif
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
    case Isa::kAmx:
      return "amx";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    default:
      return "baseline";
  }
}

}  // namespace llm_kernels
