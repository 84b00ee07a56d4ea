// Linear layers of few tokens, up to four at a time: the weight is read once, as fast as memory gives it; the rest hides behind that.

#include "cpu/linear/kernel.h"
#include "cpu/simd/gates.h"
#include "cpu/simd/vec.h"

namespace llm_kernels {
namespace LLM_ISA {
namespace {

// Rows of a weight lie one behind the other: what comes so much later is asked for now.
constexpr std::int64_t kBytesAhead = 16384;

// sums[m][n] = x[m] . weight[row + n] + bias[row + n]
template <int M, int N, class T>
LLM_INLINE void dot_rows(const LinearArgs& args, std::int64_t token, std::int64_t row, float (*sums)[kLinearOutputs]) {
  const T* x = static_cast<const T*>(args.x) + token * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight) + row * args.weight_stride;
  VecF acc[M][N] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= args.in_size; i += kLanes) {
    VecF right[N];
    for (int n = 0; n < N; ++n) {
      const T* from = weight + n * args.weight_stride + i;
      __builtin_prefetch(reinterpret_cast<const char*>(from) + kBytesAhead);
      right[n] = load(from);
    }
    for (int m = 0; m < M; ++m) {
      const VecF left = load(x + m * args.x_stride + i);
      for (int n = 0; n < N; ++n) acc[m][n] += left * right[n];
    }
  }
  if (i < args.in_size) {
    const std::int64_t rest = args.in_size - i;
    VecF right[N];
    for (int n = 0; n < N; ++n) right[n] = load_rest(weight + n * args.weight_stride + i, rest);
    for (int m = 0; m < M; ++m) {
      const VecF left = load_rest(x + m * args.x_stride + i, rest);
      for (int n = 0; n < N; ++n) acc[m][n] += left * right[n];
    }
  }
  const T* bias = static_cast<const T*>(args.bias);
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) {
      sums[m][n] = horizontal_sum(acc[m][n]) + (bias == nullptr ? 0.0f : to_float(bias[row + n]));
    }
  }
}

template <int M, int N, class T>
LLM_INLINE void outputs(const LinearArgs& args, std::int64_t token, std::int64_t output) {
  float sums[M][kLinearOutputs] = {}, ups[M][kLinearOutputs] = {};
  dot_rows<M, N, T>(args, token, output, sums);
  if (args.is_gated) dot_rows<M, N, T>(args, token, args.out_size + output, ups);
  T* out = static_cast<T*>(args.out) + token * args.out_stride + output;
  for (int m = 0; m < M; ++m) {
    float lanes[kLanes] = {};
    std::memcpy(lanes, sums[m], sizeof(sums[m]));
    if (args.is_gated) store(lanes, activate(load(lanes), args.gate));
    for (int n = 0; n < N; ++n) from_float(out + m * args.out_stride + n, args.is_gated ? lanes[n] * ups[m][n] : lanes[n]);
  }
}

template <int N, class T>
LLM_INLINE void all_tokens(const LinearArgs& args, std::int64_t output) {
  std::int64_t token = 0;
  for (; token + 4 <= args.num_tokens; token += 4) outputs<4, N, T>(args, token, output);
  switch (args.num_tokens - token) {
    case 3: return outputs<3, N, T>(args, token, output);
    case 2: return outputs<2, N, T>(args, token, output);
    case 1: return outputs<1, N, T>(args, token, output);
    default: return;
  }
}

template <class T>
void run(const LinearArgs& args, std::int64_t out_begin, std::int64_t out_end) {
  std::int64_t output = out_begin;
  for (; output + kLinearOutputs <= out_end; output += kLinearOutputs) all_tokens<kLinearOutputs, T>(args, output);
  for (; output < out_end; ++output) all_tokens<1, T>(args, output);
}

}  // namespace

void few_tokens(const LinearArgs& args, std::int64_t out_begin, std::int64_t out_end) {
  args.dtype == DType::kFloat32 ? run<float>(args, out_begin, out_end) : run<bf16>(args, out_begin, out_end);
}

}  // namespace LLM_ISA
}  // namespace llm_kernels
