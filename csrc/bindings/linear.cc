// Exports the linear layer: checks the tensors, fills the struct, calls.

#include "llm_kernels/linear.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "bindings/checks.h"

namespace llm_kernels::bindings {
namespace {

void linear_ffi(TensorView out, TensorView x, TensorView weight, tvm::ffi::Optional<TensorView> bias,
                int num_threads) {
  guarded([&] {
    check_shape("x", x, {-1, -1});
    check_shape("weight", weight, {-1, x.size(1)});
    check_shape("out", out, {x.size(0), weight.size(0)});
    check_inner_contiguous("x", x);
    check_inner_contiguous("weight", weight);
    check_inner_contiguous("out", out);
    LinearArgs args{};
    args.dtype = float_dtype("x", x);
    check_dtype("weight", weight, args.dtype);
    check_dtype("out", out, args.dtype);
    if (bias.has_value()) {
      check_shape("bias", bias.value(), {weight.size(0)});
      check_inner_contiguous("bias", bias.value());
      check_dtype("bias", bias.value(), args.dtype);
      args.bias = data_of(bias.value());
    }
    args.out = data_of(out);
    args.out_stride = out.stride(0);
    args.x = data_of(x);
    args.x_stride = x.stride(0);
    args.weight = data_of(weight);
    args.weight_stride = weight.stride(0);
    args.num_tokens = x.size(0);
    args.in_size = x.size(1);
    args.out_size = weight.size(0);
    args.num_threads = num_threads;
    linear(args);
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(invariant_linear, linear_ffi);

}  // namespace llm_kernels::bindings
