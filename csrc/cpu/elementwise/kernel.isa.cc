// RMS norms, rotary embedding and gated activations over a run of tokens; float32 inside, rounded once.

#include "cpu/elementwise/kernel.h"
#include "cpu/simd/gates.h"
#include "cpu/simd/vec.h"

namespace llm_kernels {
namespace LLM_ISA {
namespace {

template <class T, class W>
void norm_row(T* out, const T* x, T* residual, const W* weight, std::int64_t size, float eps) {
  if (residual != nullptr) {
    std::int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(residual + i, load(residual + i) + load(x + i));
    for (; i < size; ++i) from_float(residual + i, to_float(residual[i]) + to_float(x[i]));
    x = residual;
  }
  VecF squares[2] = {};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const VecF a = load(x + i), b = load(x + i + kLanes);
    squares[0] += a * a;
    squares[1] += b * b;
  }
  float total = horizontal_sum(squares[0] + squares[1]);
  for (; i < size; ++i) total += to_float(x[i]) * to_float(x[i]);
  const float scale = 1.0f / __builtin_sqrtf(total / static_cast<float>(size) + eps);
  for (i = 0; i + kLanes <= size; i += kLanes) store(out + i, load(x + i) * scale * load(weight + i));
  for (; i < size; ++i) from_float(out + i, to_float(x[i]) * scale * to_float(weight[i]));
}

template <class T, class W>
void norm_rows(const RmsNormArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t outer = row / args.num_inner, inner = row % args.num_inner;
    T* residual = static_cast<T*>(args.residual);
    if (residual != nullptr) residual += outer * args.residual_stride_outer + inner * args.residual_stride_inner;
    norm_row(static_cast<T*>(args.out) + outer * args.out_stride_outer + inner * args.out_stride_inner,
             static_cast<const T*>(args.x) + outer * args.x_stride_outer + inner * args.x_stride_inner, residual,
             static_cast<const W*>(args.weight), args.size, args.eps);
  }
}

template <class T, class C>
void rotate_head(T* x, const C* cos, const C* sin, std::int64_t half, bool interleaved) {
  std::int64_t i = 0;
  if (!interleaved) {
    for (; i + kLanes <= half; i += kLanes) {
      const VecF a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
      store(x + i, a * c - b * s);
      store(x + half + i, b * c + a * s);
    }
  }
  for (; i < half; ++i) {
    T* first = interleaved ? x + 2 * i : x + i;
    T* second = interleaved ? first + 1 : x + half + i;
    const float a = to_float(*first), b = to_float(*second), c = to_float(cos[i]), s = to_float(sin[i]);
    from_float(first, a * c - b * s);
    from_float(second, b * c + a * s);
  }
}

template <class T, class C>
void rotate_tokens(const RotaryArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t token = begin; token < end; ++token) {
    const C* cos = static_cast<const C*>(args.cos_sin) + args.positions[token] * args.cos_sin_stride;
    T* x = static_cast<T*>(args.x) + token * args.stride_token;
    for (std::int64_t head = 0; head < args.num_heads; ++head) {
      rotate_head(x + head * args.stride_head, cos, cos + args.rot / 2, args.rot / 2, args.interleaved);
    }
  }
}

template <class T>
void gate_tokens(const GatedActivationArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t token = begin; token < end; ++token) {
    const T* gate = static_cast<const T*>(args.gate_up) + token * args.gate_up_stride;
    const T* up = gate + args.size;
    T* out = static_cast<T*>(args.out) + token * args.out_stride;
    std::int64_t i = 0;
    for (; i + kLanes <= args.size; i += kLanes) store(out + i, activate(load(gate + i), args.kind) * load(up + i));
    for (; i < args.size; ++i) {
      const VecF one = activate(splat(to_float(gate[i])), args.kind);
      from_float(out + i, one[0] * to_float(up[i]));
    }
  }
}

}  // namespace

void rms_norm_rows(const RmsNormArgs& args, std::int64_t begin, std::int64_t end) {
  const bool wide_weight = args.weight_dtype == DType::kFloat32;
  if (args.dtype == DType::kFloat32) {
    return wide_weight ? norm_rows<float, float>(args, begin, end) : norm_rows<float, bf16>(args, begin, end);
  }
  return wide_weight ? norm_rows<bf16, float>(args, begin, end) : norm_rows<bf16, bf16>(args, begin, end);
}

void rotary_tokens(const RotaryArgs& args, std::int64_t begin, std::int64_t end) {
  const bool wide_table = args.cos_sin_dtype == DType::kFloat32;
  if (args.dtype == DType::kFloat32) {
    return wide_table ? rotate_tokens<float, float>(args, begin, end) : rotate_tokens<float, bf16>(args, begin, end);
  }
  return wide_table ? rotate_tokens<bf16, float>(args, begin, end) : rotate_tokens<bf16, bf16>(args, begin, end);
}

void gated_tokens(const GatedActivationArgs& args, std::int64_t begin, std::int64_t end) {
  args.dtype == DType::kFloat32 ? gate_tokens<float>(args, begin, end) : gate_tokens<bf16>(args, begin, end);
}

}  // namespace LLM_ISA
}  // namespace llm_kernels
