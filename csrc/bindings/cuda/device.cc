// Exports what the library says of itself and of the device: for `llm-stack doctor` and the choice of back ends.

#include <tvm/ffi/function.h>

#include "bindings/cuda/checks.h"

namespace llm_kernels::bindings::cuda {
namespace {

std::int64_t cuda_runtime_version() {
  int version = 0;
  check_status("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&version));
  return version;
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(cuda_runtime_version, cuda_runtime_version);

}  // namespace llm_kernels::bindings::cuda
