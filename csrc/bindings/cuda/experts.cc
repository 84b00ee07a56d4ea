// Exports the kernels of mixtures of experts: checks the tensors, fills the argument structs, enqueues on the current
// stream.

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "bindings/cuda/checks.h"
#include "llm_kernels/cuda/expert_sort.h"
#include "llm_kernels/cuda/grouped_gemm.h"
#include "llm_kernels/cuda/router.h"

namespace llm_kernels::bindings::cuda {
namespace {

using tvm::ffi::Optional;

namespace kernels = llm_kernels::cuda;

void check_device(const char* field, const TensorView& x, const TensorView& like) {
  if (x.device().device_id != like.device().device_id) throw ArgumentError(field, "expected the device of x");
}

bool is_aligned(const TensorView& x) { return reinterpret_cast<std::uintptr_t>(data_of(x)) % 16 == 0; }

void check_rows(const char* field, const TensorView& x, const TensorView& like, std::int64_t rows,
                std::int64_t columns) {
  check_shape(field, x, {rows, columns});
  check_device(field, x, like);
  const std::int64_t row_bytes = x.stride(0) * x.dtype().bits / 8;
  if (x.stride(1) != 1 || !is_aligned(x) || (x.size(0) > 1 && row_bytes % 16 != 0)) {
    throw ArgumentError(field, "expected contiguous rows that start at multiples of 16 bytes");
  }
}

template <class T>
const T* vector_of(const char* field, const TensorView& x, const TensorView& like, std::int64_t count,
                   DLDataTypeCode code) {
  check_dtype(field, x, code, 32, code == kDLInt ? "int32" : "float32");
  check_device(field, x, like);
  if (x.numel() != count) throw ArgumentError(field, "expected " + std::to_string(count) + " elements");
  std::int64_t stride = 1;
  for (int i = x.ndim() - 1; i >= 0; --i) {
    if (x.size(i) > 1 && x.stride(i) != stride) throw ArgumentError(field, "expected a contiguous tensor");
    stride *= x.size(i);
  }
  return data_as<const T>(x);
}

void check_weight(const char* field, const TensorView& weight, const TensorView& x, std::int64_t experts,
                  std::int64_t rows, std::int64_t columns) {
  check_shape(field, weight, {experts, rows, columns});
  check_device(field, weight, x);
  const bool contiguous = weight.stride(2) == 1 && weight.stride(1) == weight.size(2) &&
                          (weight.size(0) == 1 || weight.stride(0) == weight.size(1) * weight.size(2));
  if (!contiguous || !is_aligned(weight)) {
    throw ArgumentError(field, "expected a contiguous tensor that starts at a multiple of 16 bytes");
  }
}

void set_scales(kernels::GroupedGemmArgs& args, const TensorView& x, const TensorView& weight,
                const Optional<TensorView>& x_scale, const Optional<TensorView>& weight_scale) {
  args.is_float8 = is_dtype(x, kDLFloat8_e4m3fn, 8);
  if (!args.is_float8) {
    check_dtype("x", x, kDLBfloat, 16, "bfloat16 or float8_e4m3fn");
    check_dtype("weight_NOI", weight, kDLBfloat, 16, "bfloat16, as x");
    if (x_scale.has_value() || weight_scale.has_value()) throw ArgumentError("x_scale", "expected None for bfloat16");
    return;
  }
  check_dtype("weight_NOI", weight, kDLFloat8_e4m3fn, 8, "float8_e4m3fn, as x");
  if (!x_scale.has_value() || !weight_scale.has_value()) throw ArgumentError("x_scale", "expected scales for float8");
  args.x_scale = vector_of<float>("x_scale", x_scale.value(), x, x.size(0), kDLFloat);
  const std::int64_t rows = weight.size(0) * weight.size(1);
  args.weight_scale = vector_of<float>("weight_scale", weight_scale.value(), x, rows, kDLFloat);
}

void grouped_gemm_ffi(TensorView out, TensorView x, TensorView weight, Optional<TensorView> x_scale,
                      Optional<TensorView> weight_scale, Optional<TensorView> pair_weights, TensorView pairs,
                      TensorView block_experts, int num_pairs, int top_k, int gate, bool dependent) {
  guarded([&] {
    kernels::GroupedGemmArgs args{};
    if (gate < 0 || gate > static_cast<int>(kernels::GroupedGate::kGeluTanh)) throw ArgumentError("gate", "unknown");
    const bool gated = gate != 0;
    if (block_experts.ndim() != 1) throw ArgumentError("block_experts", "expected [B]");
    const std::int64_t blocks = block_experts.size(0), sorted = blocks * kernels::kGroupedBlockRows;
    check_rows("x", x, x, gated ? -1 : sorted, -1);
    check_weight("weight_NOI", weight, x, -1, -1, x.size(1));
    check_dtype("out", out, kDLBfloat, 16, "bfloat16");
    check_rows("out", out, x, gated ? sorted : num_pairs, gated ? weight.size(1) / 2 : weight.size(1));
    args.pairs = vector_of<std::int32_t>("pairs", pairs, x, sorted, kDLInt);
    args.block_experts = vector_of<std::int32_t>("block_experts", block_experts, x, blocks, kDLInt);
    if (num_pairs < 0 || top_k < 1) throw ArgumentError("top_k", "expected 1 or more, and pairs");
    if (gated && x.size(0) * top_k != num_pairs) throw ArgumentError("num_pairs", "expected top_k a row of x");
    set_scales(args, x, weight, x_scale, weight_scale);
    if (pair_weights.has_value()) {
      args.pair_weights = vector_of<float>("pair_weights", pair_weights.value(), x, num_pairs, kDLFloat);
    }
    args.out = data_of(out);
    args.out_stride = out.size(0) == 1 ? out.size(1) : out.stride(0);
    args.x = data_of(x);
    args.x_stride = x.size(0) == 1 ? x.size(1) : x.stride(0);
    args.weight = data_of(weight);
    args.num_pairs = num_pairs;
    args.top_k = top_k;
    args.num_blocks = static_cast<std::int32_t>(blocks);
    args.num_experts = static_cast<std::int32_t>(weight.size(0));
    args.out_size = static_cast<std::int32_t>(weight.size(1));
    args.in_size = static_cast<std::int32_t>(weight.size(2));
    args.num_x_rows = x.size(0);
    args.gate = static_cast<kernels::GroupedGate>(gate);
    args.dependent = dependent;
    args.stream = stream_of(x);
    const DeviceGuard guard(x);
    kernels::grouped_gemm(args);
  });
}

const std::int64_t* ids_of(const TensorView& ids, const TensorView& x, std::int64_t choices) {
  check_shape("ids_TK", ids, {x.size(0), choices});
  check_dtype("ids_TK", ids, kDLInt, 64, "int64");
  check_device("ids_TK", ids, x);
  if (ids.stride(1) != 1 || ids.stride(0) != choices) throw ArgumentError("ids_TK", "expected a contiguous tensor");
  return data_as<const std::int64_t>(ids);
}

const void* bias_of(const TensorView& bias, const TensorView& x, std::int64_t count) {
  check_shape("router_bias", bias, {count});
  check_dtype("router_bias", bias, kDLBfloat, 16, "bfloat16");
  check_device("router_bias", bias, x);
  check_inner_contiguous("router_bias", bias);
  return data_of(bias);
}

kernels::Choice choice_of(const TensorView& weights, const TensorView& ids, const TensorView& x,
                          const Optional<TensorView>& correction, std::int64_t experts, int scoring, bool renormalize,
                          double renormalize_eps, double scale) {
  if (scoring < 0 || scoring > static_cast<int>(kernels::RouterScoring::kSoftmaxAfter)) {
    throw ArgumentError("scoring", "unknown");
  }
  check_shape("weights_TK", weights, {x.size(0), -1});
  kernels::Choice choice{};
  choice.weights = const_cast<float*>(vector_of<float>("weights_TK", weights, x, weights.numel(), kDLFloat));
  choice.ids = const_cast<std::int64_t*>(ids_of(ids, x, weights.size(1)));
  if (correction.has_value()) {
    choice.correction = vector_of<float>("bias", correction.value(), x, experts, kDLFloat);
  }
  choice.top_k = static_cast<std::int32_t>(weights.size(1));
  choice.scoring = static_cast<kernels::RouterScoring>(scoring);
  choice.renormalize = renormalize;
  choice.renormalize_eps = static_cast<float>(renormalize_eps);
  choice.scale = static_cast<float>(scale);
  return choice;
}

void route_by_linear_ffi(TensorView weights, TensorView ids, TensorView x, TensorView router,
                         Optional<TensorView> router_bias, Optional<TensorView> correction, int scoring,
                         bool renormalize, double renormalize_eps, double scale, bool dependent) {
  guarded([&] {
    kernels::RouterArgs args{};
    check_rows("x_TE", x, x, -1, -1);
    check_dtype("x_TE", x, kDLBfloat, 16, "bfloat16");
    check_rows("router_NE", router, x, -1, x.size(1));
    check_dtype("router_NE", router, kDLBfloat, 16, "bfloat16");
    if (router.stride(0) != router.size(1)) throw ArgumentError("router_NE", "expected a contiguous tensor");
    args.choice =
        choice_of(weights, ids, x, correction, router.size(0), scoring, renormalize, renormalize_eps, scale);
    args.x = data_of(x);
    args.x_stride = x.size(0) == 1 ? x.size(1) : x.stride(0);
    args.weight = data_of(router);
    if (router_bias.has_value()) args.bias = bias_of(router_bias.value(), x, router.size(0));
    args.num_tokens = static_cast<std::int32_t>(x.size(0));
    args.num_experts = static_cast<std::int32_t>(router.size(0));
    args.in_size = static_cast<std::int32_t>(x.size(1));
    args.dependent = dependent;
    args.stream = stream_of(x);
    const DeviceGuard guard(x);
    kernels::route(args);
  });
}

void choose_experts_ffi(TensorView weights, TensorView ids, TensorView logits, Optional<TensorView> correction,
                        int scoring, bool renormalize, double renormalize_eps, double scale, bool dependent) {
  guarded([&] {
    kernels::ChoiceArgs args{};
    check_shape("logits_TN", logits, {-1, -1});
    check_inner_contiguous("logits_TN", logits);
    args.is_float32 = is_dtype(logits, kDLFloat, 32);
    if (!args.is_float32) check_dtype("logits_TN", logits, kDLBfloat, 16, "bfloat16 or float32");
    args.choice =
        choice_of(weights, ids, logits, correction, logits.size(1), scoring, renormalize, renormalize_eps, scale);
    args.logits = data_of(logits);
    args.logits_stride = logits.stride(0);
    args.num_tokens = static_cast<std::int32_t>(logits.size(0));
    args.num_experts = static_cast<std::int32_t>(logits.size(1));
    args.dependent = dependent;
    args.stream = stream_of(logits);
    const DeviceGuard guard(logits);
    kernels::choose_experts(args);
  });
}

void sort_by_expert_ffi(TensorView ids, TensorView counts, TensorView pairs, TensorView block_experts,
                        int num_experts, int block_rows, bool dependent) {
  guarded([&] {
    kernels::ExpertSortArgs args{};
    check_shape("ids", ids, {-1});
    check_dtype("ids", ids, kDLInt, 64, "int64");
    check_inner_contiguous("ids", ids);
    if (block_experts.ndim() != 1 || block_rows < 1) throw ArgumentError("block_rows", "expected blocks of rows");
    const std::int64_t blocks = block_experts.size(0);
    const std::int64_t chunks = (ids.size(0) + kernels::kSortChunk - 1) / kernels::kSortChunk;
    args.ids = data_as<const std::int64_t>(ids);
    args.counts =
        const_cast<std::int32_t*>(vector_of<std::int32_t>("counts", counts, ids, chunks * num_experts, kDLInt));
    args.pairs = const_cast<std::int32_t*>(vector_of<std::int32_t>("pairs", pairs, ids, blocks * block_rows, kDLInt));
    args.block_experts =
        const_cast<std::int32_t*>(vector_of<std::int32_t>("block_experts", block_experts, ids, blocks, kDLInt));
    args.num_pairs = static_cast<std::int32_t>(ids.size(0));
    args.num_experts = num_experts;
    args.num_blocks = static_cast<std::int32_t>(blocks);
    args.block_rows = block_rows;
    args.dependent = dependent;
    args.stream = stream_of(ids);
    const DeviceGuard guard(ids);
    kernels::sort_by_expert(args);
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(sort_by_expert, sort_by_expert_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(choose_experts, choose_experts_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(route_by_linear, route_by_linear_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(grouped_gemm, grouped_gemm_ffi);

}  // namespace llm_kernels::bindings::cuda
