// What the linear layers hand to the kernels of an instruction set: a run of tokens and a run of outputs.
#pragma once

#include <cstdint>

#include "llm_kernels/linear.h"

namespace llm_kernels {

// Outputs that are computed together: runs begin at multiples of it.
constexpr std::int64_t kLinearOutputs = 4;

using InvariantKernel = void (*)(const LinearArgs& args, std::int64_t token_begin, std::int64_t token_end,
                                 std::int64_t out_begin, std::int64_t out_end);
using FewTokensKernel = void (*)(const LinearArgs& args, std::int64_t out_begin, std::int64_t out_end);

#define LLM_DECLARE_LINEAR(isa)                                                                     \
  namespace isa {                                                                                   \
  void invariant_tile(const LinearArgs& args, std::int64_t token_begin, std::int64_t token_end,     \
                      std::int64_t out_begin, std::int64_t out_end);                                \
  void few_tokens(const LinearArgs& args, std::int64_t out_begin, std::int64_t out_end);            \
  }
LLM_DECLARE_LINEAR(baseline)
LLM_DECLARE_LINEAR(avx2)
LLM_DECLARE_LINEAR(avx512)
#undef LLM_DECLARE_LINEAR

// Matrix tiles (AMX). Tokens come packed: blocks of 16, each [E / 2, 16, 2], so that a tile holds pairs of inputs
// side by side; what is missing to whole blocks and whole tiles is 0.
constexpr std::int64_t kTileTokens = 16;
constexpr std::int64_t kTileInputs = 32;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

// Outputs that one panel of 32 rows of the weight gives.
inline std::int64_t panel_outputs(const LinearArgs& args) { return args.is_gated ? 16 : 32; }

namespace amx {
// Packs the block of tokens that begins at `token`.
void pack_tokens(const LinearArgs& args, std::int64_t token, std::int64_t num_tokens, std::uint16_t* packed);
// The outputs of a run of panels for `num_tokens` tokens, packed, of which the first is `token`. `scratch`: room for
// 32 rows of the weight, as long as whole tiles.
void tiled_panels(const LinearArgs& args, const std::uint16_t* packed, std::int64_t token, std::int64_t num_tokens,
                  std::int64_t panel_begin, std::int64_t panel_end, std::uint16_t* scratch);
}  // namespace amx

}  // namespace llm_kernels
