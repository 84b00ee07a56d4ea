// From the tensors of a matrix product to the argument struct of its kernels: checks and fields. Knows no kernel.
#pragma once

#include <tvm/ffi/optional.h>

#include <cstdint>

#include "bindings/cuda/checks.h"
#include "llm_kernels/cuda/linear.h"

namespace llm_kernels::bindings::cuda {

using tvm::ffi::Optional;

namespace kernels = llm_kernels::cuda;

// On the device of `like`, of this shape, rows of contiguous elements that start at multiples of 16 bytes.
inline void check_rows(const char* field, const TensorView& x, const TensorView& like, std::int64_t rows,
                       std::int64_t columns) {
  check_shape(field, x, {rows, columns});
  if (x.device().device_id != like.device().device_id) throw ArgumentError(field, "expected the device of x_TI");
  const std::int64_t row_bytes = x.stride(0) * x.dtype().bits / 8;
  const bool aligned = reinterpret_cast<std::uintptr_t>(data_of(x)) % 16 == 0 && (rows == 1 || row_bytes % 16 == 0);
  if (x.stride(1) != 1 || !aligned) {
    throw ArgumentError(field, "expected contiguous rows that start at multiples of 16 bytes");
  }
}

// A row alone may have any stride; the copy engine wants one that it takes.
inline std::int64_t row_stride(const TensorView& x) { return x.size(0) == 1 ? x.size(1) : x.stride(0); }

inline void set_scale(kernels::LinearArgs& args, const TensorView& scale) {
  if (!is_dtype(scale, kDLFloat, 32)) throw ArgumentError("weight_scale", "expected float32");
  args.scale = data_as<const float>(scale);
  const std::int64_t columns = (args.in_size + 127) / 128, rows = (args.out_size + 127) / 128;
  if (scale.numel() == 1) {
    args.scale_kind = kernels::LinearScale::kTensor;
  } else if (scale.ndim() == 1 && scale.size(0) == args.out_size && scale.stride(0) == 1) {
    args.scale_kind = kernels::LinearScale::kChannel;
  } else if (scale.ndim() == 2 && scale.size(0) == rows && scale.size(1) == columns && scale.stride(1) == 1) {
    args.scale_kind = kernels::LinearScale::kBlock;
    args.scale_stride = scale.stride(0);
  } else {
    throw ArgumentError("weight_scale", "expected one value, [O] or [ceil(O / 128), ceil(I / 128)]");
  }
}

inline void set_token_scale(kernels::LinearArgs& args, const TensorView& scale) {
  check_shape("scales_TG", scale, {args.num_tokens, 1});
  check_dtype("scales_TG", scale, kDLFloat, 32, "float32");
  args.weight_kind = kernels::LinearWeight::kFloat8Both;
  args.token_scale = data_as<const float>(scale);
  args.token_scale_stride = scale.stride(0);
}

inline void set_bias(kernels::LinearArgs& args, const TensorView& bias) {
  check_dtype("bias", bias, kDLBfloat, 16, "bfloat16");
  check_shape("bias", bias, {args.out_size});
  check_inner_contiguous("bias", bias);
  args.bias = data_of(bias);
}

// What all products have: shapes, dtypes of bfloat16 or float8 weights, gate and bias.
inline kernels::LinearArgs arguments_of(const TensorView& out, const TensorView& x, const TensorView& weight,
                                        const Optional<TensorView>& bias, const Optional<TensorView>& scale, int gate) {
  check_shape("x_TI", x, {-1, -1});
  check_shape("weight_OI", weight, {-1, -1});
  if (gate < 0 || gate > static_cast<int>(kernels::LinearGate::kGeluTanh)) throw ArgumentError("kind", "unknown");
  check_dtype("out", out, kDLBfloat, 16, "bfloat16");
  const std::int64_t out_size = weight.size(0);
  check_rows("x_TI", x, x, x.size(0), weight.size(1));
  check_rows("weight_OI", weight, x, out_size, weight.size(1));
  check_rows("out", out, x, x.size(0), gate == 0 ? out_size : out_size / 2);
  kernels::LinearArgs args{};
  args.out = data_of(out);
  args.out_stride = row_stride(out);
  args.x = data_of(x);
  args.x_stride = row_stride(x);
  args.weight = data_of(weight);
  args.weight_stride = row_stride(weight);
  args.num_tokens = static_cast<std::int32_t>(x.size(0));
  args.out_size = static_cast<std::int32_t>(out_size);
  args.in_size = static_cast<std::int32_t>(weight.size(1));
  args.gate = static_cast<kernels::LinearGate>(gate);
  if (scale.has_value()) {
    check_dtype("weight_OI", weight, kDLFloat8_e4m3fn, 8, "float8_e4m3fn");
    args.weight_kind = kernels::LinearWeight::kFloat8;
    set_scale(args, scale.value());
  } else {
    check_dtype("weight_OI", weight, kDLBfloat, 16, "bfloat16");
  }
  if (bias.has_value()) set_bias(args, bias.value());
  return args;
}

}  // namespace llm_kernels::bindings::cuda
