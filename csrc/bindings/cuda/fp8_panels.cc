// Exports fp8_panels: checks the tensors, fills the argument struct, enqueues on the current stream.

#include "llm_kernels/cuda/fp8_panels.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "bindings/cuda/checks.h"

namespace llm_kernels::bindings::cuda {
namespace {

using tvm::ffi::Optional;

namespace kernels = llm_kernels::cuda;

// On the device of `like`, of this shape, rows of contiguous elements that start at multiples of `unit` bytes.
void check_panel(const char* field, const TensorView& x, const TensorView& like, std::int64_t rows,
                 std::int64_t columns, std::int64_t unit) {
  check_shape(field, x, {rows, columns});
  if (x.device().device_id != like.device().device_id) throw ArgumentError(field, "expected the device of values_TI");
  const std::int64_t row_bytes = x.stride(0) * x.dtype().bits / 8;
  const bool aligned = reinterpret_cast<std::uintptr_t>(data_of(x)) % unit == 0 && (rows == 1 || row_bytes % unit == 0);
  if (x.stride(1) != 1 || !aligned) {
    throw ArgumentError(field, "expected contiguous rows that start at multiples of " + std::to_string(unit) + " bytes");
  }
}

// A row alone may have any stride; the copy engine wants one that it takes.
std::int64_t stride_of_rows(const TensorView& x) { return x.size(0) == 1 ? x.size(1) : x.stride(0); }

void set_scales(kernels::PanelArgs& args, const TensorView& scale, const Optional<TensorView>& token_scale) {
  check_dtype("weight_scale", scale, kDLFloat, 32, "float32");
  args.scale_of_rows = scale.numel() != 1;
  if (args.scale_of_rows) {
    check_shape("weight_scale", scale, {args.out_size});
    check_inner_contiguous("weight_scale", scale);
  }
  args.scale = data_as<const float>(scale);
  if (!token_scale.has_value()) return;
  check_shape("scales_TG", token_scale.value(), {args.num_tokens, 1});
  check_dtype("scales_TG", token_scale.value(), kDLFloat, 32, "float32");
  args.token_scale = data_as<const float>(token_scale.value());
  args.token_scale_stride = token_scale.value().stride(0);
}

void set_matrices(kernels::PanelArgs& args, const TensorView& out, const TensorView& x, const TensorView& weight) {
  check_shape("values_TI", x, {-1, -1});
  check_shape("weight_OI", weight, {-1, -1});
  check_dtype("out", out, kDLBfloat, 16, "bfloat16");
  check_dtype("weight_OI", weight, kDLFloat8_e4m3fn, 8, "float8_e4m3fn");
  const std::int64_t out_size = weight.size(0);
  check_panel("values_TI", x, x, x.size(0), weight.size(1), 16);
  check_panel("weight_OI", weight, x, out_size, weight.size(1), 16);
  check_panel("out", out, x, x.size(0), args.gate == kernels::LinearGate::kNone ? out_size : out_size / 2, 8);
  args.out = data_of(out);
  args.out_stride = stride_of_rows(out);
  args.x = data_of(x);
  args.x_stride = stride_of_rows(x);
  args.weight = data_of(weight);
  args.weight_stride = stride_of_rows(weight);
  args.num_tokens = static_cast<std::int32_t>(x.size(0));
  args.out_size = static_cast<std::int32_t>(out_size);
  args.in_size = static_cast<std::int32_t>(weight.size(1));
}

void fp8_panels_ffi(TensorView out, TensorView x, Optional<TensorView> token_scale, TensorView weight, TensorView scale,
                    Optional<TensorView> bias, int gate, int groups, int split, int tile, int resident,
                    bool dependent) {
  guarded([&] {
    if (gate < 0 || gate > static_cast<int>(kernels::LinearGate::kGeluTanh)) throw ArgumentError("kind", "unknown");
    kernels::PanelArgs args{};
    args.gate = static_cast<kernels::LinearGate>(gate);
    if (token_scale.has_value()) {
      check_dtype("values_TI", x, kDLFloat8_e4m3fn, 8, "float8_e4m3fn");
    } else {
      check_dtype("x_TI", x, kDLBfloat, 16, "bfloat16");
    }
    set_matrices(args, out, x, weight);
    set_scales(args, scale, token_scale);
    if (bias.has_value()) {
      check_dtype("bias_O", bias.value(), kDLBfloat, 16, "bfloat16");
      check_shape("bias_O", bias.value(), {args.out_size});
      check_inner_contiguous("bias_O", bias.value());
      args.bias = data_of(bias.value());
    }
    args.plan = {groups, split, tile, resident};
    args.dependent = dependent;
    args.stream = stream_of(x);
    const DeviceGuard guard(x);
    kernels::fp8_panels(args);
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(fp8_panels, fp8_panels_ffi);

}  // namespace llm_kernels::bindings::cuda
