// Exports tiled_linear: checks the tensors, fills the argument struct, enqueues on the current stream.

#include "llm_kernels/cuda/gemm.h"

#include <tvm/ffi/function.h>

#include "bindings/cuda/linear_arguments.h"

namespace llm_kernels::bindings::cuda {
namespace {

void tiled_linear_ffi(TensorView out, TensorView x, TensorView weight, Optional<TensorView> bias, int gate, int groups,
                      int blocks, int tokens, int split, int pair, bool dependent) {
  guarded([&] {
    kernels::LinearArgs args = arguments_of(out, x, weight, bias, Optional<TensorView>(), gate);
    check_dtype("x_TI", x, kDLBfloat, 16, "bfloat16");
    args.dependent = dependent;
    args.stream = stream_of(x);
    const DeviceGuard guard(x);
    kernels::tiled_linear(args, {groups, blocks, tokens, split, pair});
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(tiled_linear, tiled_linear_ffi);

}  // namespace llm_kernels::bindings::cuda
