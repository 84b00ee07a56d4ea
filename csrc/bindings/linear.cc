// Exports the linear layers: checks the tensors, fills the struct, calls.

#include "llm_kernels/linear.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include "bindings/checks.h"

namespace llm_kernels::bindings {
namespace {

using Bias = tvm::ffi::Optional<TensorView>;

// `rows_per_output`: rows of the weight for an output, 2 where there is a gate.
LinearArgs linear_args(TensorView out, TensorView x, TensorView weight, const Bias& bias, int rows_per_output,
                       int num_threads) {
  check_shape("x", x, {-1, -1});
  check_shape("weight", weight, {-1, x.size(1)});
  if (weight.size(0) % rows_per_output != 0) throw ArgumentError("weight", "expected an even number of rows");
  check_shape("out", out, {x.size(0), weight.size(0) / rows_per_output});
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
  args.out_size = out.size(1);
  args.num_threads = num_threads;
  return args;
}

void linear_ffi(TensorView out, TensorView x, TensorView weight, Bias bias, int num_threads) {
  guarded([&] { linear(linear_args(out, x, weight, bias, 1, num_threads)); });
}

void invariant_linear_ffi(TensorView out, TensorView x, TensorView weight, Bias bias, int num_threads) {
  guarded([&] { invariant_linear(linear_args(out, x, weight, bias, 1, num_threads)); });
}

void gated_linear_ffi(TensorView out, TensorView x, TensorView weight, Bias bias, tvm::ffi::String gate,
                      int num_threads) {
  guarded([&] {
    LinearArgs args = linear_args(out, x, weight, bias, 2, num_threads);
    args.is_gated = true;
    args.gate = gate_kind(gate);
    linear(args);
  });
}

std::int64_t linear_most_tokens_ffi(bool is_bfloat16) {
  return linear_most_tokens(is_bfloat16 ? DType::kBFloat16 : DType::kFloat32);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear, linear_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gated_linear, gated_linear_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_most_tokens, linear_most_tokens_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(invariant_linear, invariant_linear_ffi);

}  // namespace llm_kernels::bindings
