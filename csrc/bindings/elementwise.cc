// Exports the norms, the rotary embedding and the gated activation: checks the tensors, fills the structs, calls.

#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include "bindings/checks.h"
#include "llm_kernels/elementwise.h"

namespace llm_kernels::bindings {
namespace {

void check_same_shape(const char* field, const TensorView& x, const TensorView& like) {
  check_device(field, x);
  bool same = x.ndim() == like.ndim();
  for (int i = 0; same && i < x.ndim(); ++i) same = x.size(i) == like.size(i);
  if (!same) throw ArgumentError(field, "expected shape " + shape_text(like) + ", got " + shape_text(x));
  check_inner_contiguous(field, x);
}

std::int64_t inner_stride(const TensorView& x) { return x.ndim() == 3 ? x.stride(1) : 0; }

// x is [T, E] or [T, H, D].
RmsNormArgs norm_args(const TensorView& x, const TensorView& weight, double eps, int num_threads) {
  check_device("x", x);
  if (x.ndim() != 2 && x.ndim() != 3) throw ArgumentError("x", "expected [T, E] or [T, H, D], got " + shape_text(x));
  check_inner_contiguous("x", x);
  const std::int64_t size = x.size(x.ndim() - 1);
  check_shape("weight", weight, {size});
  check_inner_contiguous("weight", weight);
  RmsNormArgs args{};
  args.x = data_of(x);
  args.x_stride_outer = x.stride(0);
  args.x_stride_inner = inner_stride(x);
  args.dtype = float_dtype("x", x);
  args.weight = data_of(weight);
  args.weight_dtype = float_dtype("weight", weight);
  args.num_outer = x.size(0);
  args.num_inner = x.ndim() == 3 ? x.size(1) : 1;
  args.size = size;
  args.eps = static_cast<float>(eps);
  args.num_threads = num_threads;
  return args;
}

void rms_norm_ffi(TensorView out, TensorView x, TensorView weight, double eps, int num_threads) {
  guarded([&] {
    RmsNormArgs args = norm_args(x, weight, eps, num_threads);
    check_same_shape("out", out, x);
    check_dtype("out", out, args.dtype);
    args.out = data_of(out);
    args.out_stride_outer = out.stride(0);
    args.out_stride_inner = inner_stride(out);
    rms_norm(args);
  });
}

void fused_add_rms_norm_ffi(TensorView x, TensorView residual, TensorView weight, double eps, int num_threads) {
  guarded([&] {
    RmsNormArgs args = norm_args(x, weight, eps, num_threads);
    check_same_shape("residual", residual, x);
    check_dtype("residual", residual, args.dtype);
    args.out = data_of(x);
    args.out_stride_outer = args.x_stride_outer;
    args.out_stride_inner = args.x_stride_inner;
    args.residual = data_of(residual);
    args.residual_stride_outer = residual.stride(0);
    args.residual_stride_inner = inner_stride(residual);
    rms_norm(args);
  });
}

RotaryArgs rotary_args(const char* field, const TensorView& x, const TensorView& positions, const TensorView& table,
                       bool interleaved, int num_threads) {
  check_shape(field, x, {positions.size(0), -1, -1});
  check_inner_contiguous(field, x);
  const std::int64_t rot = table.size(1);
  if (rot % 2 != 0 || rot > x.size(2)) {
    throw ArgumentError("cos_sin_cache", "its width must be even and at most the head size, got " + shape_text(table));
  }
  RotaryArgs args{};
  args.x = data_of(x);
  args.stride_token = x.stride(0);
  args.stride_head = x.stride(1);
  args.dtype = float_dtype(field, x);
  args.positions = data_as<const std::int64_t>(positions);
  args.cos_sin = data_of(table);
  args.cos_sin_stride = table.stride(0);
  args.cos_sin_dtype = float_dtype("cos_sin_cache", table);
  args.num_tokens = x.size(0);
  args.num_heads = x.size(1);
  args.rot = rot;
  args.num_positions = table.size(0);
  args.interleaved = interleaved;
  args.num_threads = num_threads;
  return args;
}

void rotary_embedding_ffi(TensorView query, TensorView key, TensorView positions, TensorView cos_sin_cache,
                          bool interleaved, int num_threads) {
  guarded([&] {
    check_shape("positions", positions, {-1});
    check_int("positions", positions, 64);
    check_shape("cos_sin_cache", cos_sin_cache, {-1, -1});
    check_inner_contiguous("cos_sin_cache", cos_sin_cache);
    const RotaryArgs first = rotary_args("query_THD", query, positions, cos_sin_cache, interleaved, num_threads);
    const RotaryArgs second = rotary_args("key_TKD", key, positions, cos_sin_cache, interleaved, num_threads);
    check_positions(first);
    rotary_embedding(first);
    rotary_embedding(second);
  });
}

void gated_activation_ffi(TensorView out, TensorView gate_up, tvm::ffi::String kind, int num_threads) {
  guarded([&] {
    check_shape("out", out, {-1, -1});
    check_shape("gate_up", gate_up, {out.size(0), 2 * out.size(1)});
    check_inner_contiguous("out", out);
    check_inner_contiguous("gate_up", gate_up);
    GatedActivationArgs args{};
    args.out = data_of(out);
    args.out_stride = out.stride(0);
    args.gate_up = data_of(gate_up);
    args.gate_up_stride = gate_up.stride(0);
    args.dtype = float_dtype("gate_up", gate_up);
    check_dtype("out", out, args.dtype);
    args.num_tokens = out.size(0);
    args.size = out.size(1);
    args.kind = gate_kind(kind);
    args.num_threads = num_threads;
    gated_activation(args);
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm, rms_norm_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fused_add_rms_norm, fused_add_rms_norm_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rotary_embedding, rotary_embedding_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gated_activation, gated_activation_ffi);

}  // namespace llm_kernels::bindings
