// Exports streamed_linear: checks the tensors, fills the argument struct, enqueues on the current stream.

#include "llm_kernels/cuda/linear.h"

#include <tvm/ffi/function.h>

#include "bindings/cuda/linear_arguments.h"

namespace llm_kernels::bindings::cuda {
namespace {

void enqueue(kernels::LinearArgs& args, const TensorView& x) {
  args.stream = stream_of(x);
  const DeviceGuard guard(x);
  kernels::linear(args);
}

void streamed_linear_ffi(TensorView out, TensorView x, TensorView weight, Optional<TensorView> bias,
                         Optional<TensorView> scale, Optional<TensorView> token_scale, int gate, int tiles, int split,
                         int resident, int rows, int unroll, bool dependent) {
  guarded([&] {
    kernels::LinearArgs args = arguments_of(out, x, weight, bias, scale, gate);
    args.plan = {tiles, split, resident, rows, unroll};
    args.dependent = dependent;
    if (token_scale.has_value()) {
      if (!scale.has_value()) throw ArgumentError("weight_scale", "float8 tokens go with float8 weights");
      check_dtype("x_TI", x, kDLFloat8_e4m3fn, 8, "float8_e4m3fn");
      set_token_scale(args, token_scale.value());
    } else {
      check_dtype("x_TI", x, kDLBfloat, 16, "bfloat16");
    }
    enqueue(args, x);
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(streamed_linear, streamed_linear_ffi);

}  // namespace llm_kernels::bindings::cuda
