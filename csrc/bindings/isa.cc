// Exports the instruction set in use, and the switch that tests turn.

#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include "bindings/checks.h"

namespace llm_kernels::bindings {
namespace {

tvm::ffi::String cpu_isa_ffi() { return isa_name(current_isa()); }

void force_cpu_isa_ffi(tvm::ffi::String name) {
  guarded([&] {
    for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
      if (name == isa_name(isa)) return force_isa(isa);
    }
    throw ArgumentError("isa", "expected baseline, avx2, avx512 or amx");
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(cpu_isa, cpu_isa_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(force_cpu_isa, force_cpu_isa_ffi);

}  // namespace llm_kernels::bindings
