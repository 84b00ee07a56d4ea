// Dot products of rows with rows of the weight: each in lanes over the inputs, the lanes then added in one order.
//
// An output's operations are the same for every number M of rows computed together: M only says how often a vector
// of the weight is used once it is loaded. Multiplications and additions are fused in all of them or in none, since
// all are compiled from one line.

#include "cpu/linear/kernel.h"
#include "cpu/simd/vec.h"

namespace llm_kernels {
namespace LLM_ISA {
namespace {

// out[m][n] = x[m] . weight[n] + bias[n]
template <int M, int N, class T>
LLM_INLINE void dot_block(const LinearArgs& args, std::int64_t token, std::int64_t output) {
  const T* x = static_cast<const T*>(args.x) + token * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight) + output * args.weight_stride;
  VecF acc[M][N] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= args.in_size; i += kLanes) {
    VecF row[N];
    for (int n = 0; n < N; ++n) row[n] = load(weight + n * args.weight_stride + i);
    for (int m = 0; m < M; ++m) {
      const VecF left = load(x + m * args.x_stride + i);
      for (int n = 0; n < N; ++n) acc[m][n] += left * row[n];
    }
  }
  if (i < args.in_size) {
    const std::int64_t rest = args.in_size - i;
    VecF row[N];
    for (int n = 0; n < N; ++n) row[n] = load_rest(weight + n * args.weight_stride + i, rest);
    for (int m = 0; m < M; ++m) {
      const VecF left = load_rest(x + m * args.x_stride + i, rest);
      for (int n = 0; n < N; ++n) acc[m][n] += left * row[n];
    }
  }
  const T* bias = static_cast<const T*>(args.bias);
  T* out = static_cast<T*>(args.out) + token * args.out_stride + output;
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) {
      float sum = horizontal_sum(acc[m][n]);
      if (bias != nullptr) sum += to_float(bias[output + n]);
      from_float(out + m * args.out_stride + n, sum);
    }
  }
}

template <int N, class T>
LLM_INLINE void dot_tokens(const LinearArgs& args, std::int64_t begin, std::int64_t end, std::int64_t output) {
  std::int64_t token = begin;
  for (; token + 3 <= end; token += 3) dot_block<3, N, T>(args, token, output);
  if (end - token == 2) dot_block<2, N, T>(args, token, output);
  if (end - token == 1) dot_block<1, N, T>(args, token, output);
}

template <class T>
void tile(const LinearArgs& args, std::int64_t token_begin, std::int64_t token_end, std::int64_t out_begin,
          std::int64_t out_end) {
  std::int64_t output = out_begin;
  for (; output + kLinearOutputs <= out_end; output += kLinearOutputs) {
    dot_tokens<kLinearOutputs, T>(args, token_begin, token_end, output);
  }
  for (; output < out_end; ++output) dot_tokens<1, T>(args, token_begin, token_end, output);
}

}  // namespace

void invariant_tile(const LinearArgs& args, std::int64_t token_begin, std::int64_t token_end, std::int64_t out_begin,
                    std::int64_t out_end) {
  if (args.dtype == DType::kFloat32) return tile<float>(args, token_begin, token_end, out_begin, out_end);
  tile<bf16>(args, token_begin, token_end, out_begin, out_end);
}

}  // namespace LLM_ISA
}  // namespace llm_kernels
