// Linear layers through matrix tiles (AMX), on weights as they lie: a tile holds 16 rows of the weight and 32 of their
// inputs, the other 16 tokens. So tokens are rearranged, which are few, and the weight is not, which is large.
//
// Two tiles of the weight meet two of tokens: four products for four loads.

#include <immintrin.h>

#include "cpu/linear/kernel.h"
#include "cpu/simd/gates.h"
#include "cpu/simd/vec.h"

namespace llm_kernels {
namespace LLM_ISA {
namespace {

constexpr std::int64_t kRows = 16;  // of the weight in a tile

// The tiles by number, which the intrinsics want as literals: sums of (first | second rows) x (first | second tokens),
// rows of the weight, tokens.
#define SUM_FIRST_FIRST 0
#define SUM_SECOND_FIRST 1
#define SUM_FIRST_SECOND 2
#define SUM_SECOND_SECOND 3
#define ROWS_FIRST 4
#define ROWS_SECOND 5
#define TOKENS_FIRST 6
#define TOKENS_SECOND 7

struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// All eight tiles are 16 rows of 64 bytes while this lives.
class Tiles {
 public:
  Tiles() {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.rows[tile] = 16;
      shapes.row_bytes[tile] = 64;
    }
    // GCC 12 does not know that the instruction reads the struct.
    asm volatile("" : : "r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
  }
  ~Tiles() { _tile_release(); }
};

// Sixteen rows of the weight: the inputs that fill whole tiles where they lie, the last few in a tile of their own.
struct Rows {
  const std::uint16_t* data;
  std::int64_t stride;        // in elements
  const std::uint16_t* rest;  // [16, 32]; null: none
  std::int64_t rest_stride;
};

struct Panel {
  Rows first, second;
  std::int64_t output;  // of its first row
};

void copy_rows(const LinearArgs& args, std::int64_t row, std::int64_t count, std::uint16_t* to, std::int64_t stride) {
  const std::uint16_t* weight = static_cast<const std::uint16_t*>(args.weight);
  for (std::int64_t r = 0; r < kRows; ++r, to += stride) {
    std::memset(to, 0, sizeof(*to) * stride);
    if (r < count) std::memcpy(to, weight + (row + r) * args.weight_stride, sizeof(*to) * args.in_size);
  }
}

// Rows [row, row + 16) of the weight, of which `count` exist. What tiles cannot load as it lies is copied.
Rows rows_at(const LinearArgs& args, std::int64_t row, std::int64_t count, std::uint16_t* scratch) {
  const std::int64_t whole = args.in_size / kTileInputs * kTileInputs;
  if (count < kRows) {
    const std::int64_t stride = round_up(args.in_size, kTileInputs);
    copy_rows(args, row, count < 0 ? 0 : count, scratch, stride);
    return {scratch, stride, whole < args.in_size ? scratch + whole : nullptr, stride};
  }
  const std::uint16_t* data = static_cast<const std::uint16_t*>(args.weight) + row * args.weight_stride;
  if (whole == args.in_size) return {data, args.weight_stride, nullptr, 0};
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::memset(scratch + r * kTileInputs, 0, 2 * kTileInputs);
    std::memcpy(scratch + r * kTileInputs, data + r * args.weight_stride + whole, 2 * (args.in_size - whole));
  }
  return {data, args.weight_stride, scratch, kTileInputs};
}

Panel panel_at(const LinearArgs& args, std::int64_t panel, std::uint16_t* scratch) {
  std::uint16_t* second_scratch = scratch + kRows * round_up(args.in_size, kTileInputs);
  const std::int64_t output = panel * panel_outputs(args), left = args.out_size - output;
  if (args.is_gated) {
    return {rows_at(args, output, left, scratch), rows_at(args, args.out_size + output, left, second_scratch), output};
  }
  return {rows_at(args, output, left, scratch), rows_at(args, output + kRows, left - kRows, second_scratch), output};
}

// Asks for the same part of the next panel, which lies right behind this one.
LLM_INLINE void prefetch_next(const Panel& panel, std::int64_t step, std::int64_t rows_ahead) {
  for (const Rows* rows : {&panel.first, &panel.second}) {
    const char* at = reinterpret_cast<const char*>(rows->data + rows_ahead * rows->stride) + step * 1024;
    for (int line = 0; line < 16; ++line) __builtin_prefetch(at + 64 * line, 0, 2);
  }
}

template <bool kTwo>
LLM_INLINE void multiply(const std::uint16_t* first, std::int64_t first_stride, const std::uint16_t* second,
                         std::int64_t second_stride, const std::uint16_t* tokens, std::int64_t next_block) {
  _tile_loadd(ROWS_FIRST, first, first_stride * 2);
  _tile_loadd(TOKENS_FIRST, tokens, 64);
  _tile_dpbf16ps(SUM_FIRST_FIRST, ROWS_FIRST, TOKENS_FIRST);
  _tile_loadd(ROWS_SECOND, second, second_stride * 2);
  _tile_dpbf16ps(SUM_SECOND_FIRST, ROWS_SECOND, TOKENS_FIRST);
  if constexpr (kTwo) {
    _tile_loadd(TOKENS_SECOND, tokens + next_block, 64);
    _tile_dpbf16ps(SUM_FIRST_SECOND, ROWS_FIRST, TOKENS_SECOND);
    _tile_dpbf16ps(SUM_SECOND_SECOND, ROWS_SECOND, TOKENS_SECOND);
  }
}

using Sums = float[2][2][16][16];  // [block of tokens, half of the panel, row, token]

// One panel times one or two blocks of tokens.
template <bool kTwo>
void multiply_panel(const LinearArgs& args, const Panel& panel, const std::uint16_t* tokens, std::int64_t next_block,
                    bool prefetches, Sums& sums) {
  _tile_zero(SUM_FIRST_FIRST);
  _tile_zero(SUM_SECOND_FIRST);
  if constexpr (kTwo) {
    _tile_zero(SUM_FIRST_SECOND);
    _tile_zero(SUM_SECOND_SECOND);
  }
  const Rows &first = panel.first, &second = panel.second;
  const std::int64_t steps = args.in_size / kTileInputs, rows_ahead = args.is_gated ? kRows : 2 * kRows;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (prefetches) prefetch_next(panel, step, rows_ahead);
    multiply<kTwo>(first.data + step * kTileInputs, first.stride, second.data + step * kTileInputs, second.stride,
                   tokens + step * kTileInputs * kTileTokens, next_block);
  }
  if (first.rest != nullptr) {
    multiply<kTwo>(first.rest, first.rest_stride, second.rest, second.rest_stride,
                   tokens + steps * kTileInputs * kTileTokens, next_block);
  }
  _tile_stored(SUM_FIRST_FIRST, sums[0][0], 64);
  _tile_stored(SUM_SECOND_FIRST, sums[0][1], 64);
  if constexpr (kTwo) {
    _tile_stored(SUM_FIRST_SECOND, sums[1][0], 64);
    _tile_stored(SUM_SECOND_SECOND, sums[1][1], 64);
  }
}

// Turns sixteen outputs of sixteen tokens into sixteen tokens' outputs.
LLM_INLINE void transpose(const float (*from)[16], VecF* rows) {
  __m512 r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_ps(from[i]);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = (VecF)_mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = (VecF)_mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    rows[i + 4] = (VecF)_mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    rows[i + 12] = (VecF)_mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

VecF bias_of(const LinearArgs& args, std::int64_t row, std::int64_t count) {
  float values[16] = {};
  const bf16* bias = static_cast<const bf16*>(args.bias);
  for (std::int64_t i = 0; bias != nullptr && i < count && i < kRows; ++i) values[i] = to_float(bias[row + i]);
  return load(values);
}

void write(bf16* to, VecF value, std::int64_t count) {
  if (count >= kRows) return store(to, value);
  for (std::int64_t i = 0; i < count; ++i) from_float(to + i, value[i]);
}

// Writes the sums of one block of tokens.
void write_block(const LinearArgs& args, const Panel& panel, const float (*sums)[16][16], std::int64_t token,
                 std::int64_t num_tokens) {
  VecF first[16], second[16];
  transpose(sums[0], first);
  transpose(sums[1], second);
  const std::int64_t output = panel.output, left = args.out_size - output;
  bf16* out = static_cast<bf16*>(args.out) + token * args.out_stride + output;
  const VecF first_bias = bias_of(args, output, left);
  const VecF second_bias = args.is_gated ? bias_of(args, args.out_size + output, left)
                                         : bias_of(args, output + kRows, left - kRows);
  for (std::int64_t t = 0; t < num_tokens; ++t, out += args.out_stride) {
    const VecF a = first[t] + first_bias, b = second[t] + second_bias;
    if (args.is_gated) {
      write(out, activate(a, args.gate) * b, left);
    } else {
      write(out, a, left);
      write(out + kRows, b, left - kRows);
    }
  }
}

}  // namespace

void pack_tokens(const LinearArgs& args, std::int64_t token, std::int64_t num_tokens, std::uint16_t* packed) {
  const std::int64_t pairs = round_up(args.in_size, kTileInputs) / 2, whole = args.in_size / 32 * 16;
  const std::uint16_t* x = static_cast<const std::uint16_t*>(args.x) + token * args.x_stride;
  alignas(64) float block[16][16];
  VecF turned[16];
  // A pair of inputs travels as one float.
  for (std::int64_t pair = 0; pair < pairs; pair += 16) {
    std::memset(block, 0, sizeof(block));
    const std::int64_t count = pair < whole ? 32 : args.in_size - 2 * pair;
    for (std::int64_t t = 0; t < num_tokens; ++t) std::memcpy(block[t], x + t * args.x_stride + 2 * pair, 2 * count);
    transpose(block, turned);
    std::memcpy(packed + pair * 32, turned, sizeof(turned));
  }
}

void tiled_panels(const LinearArgs& args, const std::uint16_t* packed, std::int64_t token, std::int64_t num_tokens,
                  std::int64_t panel_begin, std::int64_t panel_end, std::uint16_t* scratch) {
  const Tiles tiles;
  alignas(64) Sums sums;
  const std::int64_t block = round_up(args.in_size, kTileInputs) * kTileTokens;
  for (std::int64_t index = panel_begin; index < panel_end; ++index) {
    const Panel panel = panel_at(args, index, scratch);
    for (std::int64_t t = 0; t < num_tokens; t += 2 * kTileTokens) {
      const std::uint16_t* tokens = packed + t / kTileTokens * block;
      const std::int64_t left = num_tokens - t;
      if (left <= kTileTokens) {
        multiply_panel<false>(args, panel, tokens, 0, t == 0, sums);
        write_block(args, panel, sums[0], token + t, left);
      } else {
        multiply_panel<true>(args, panel, tokens, block, t == 0, sums);
        write_block(args, panel, sums[0], token + t, kTileTokens);
        write_block(args, panel, sums[1], token + t + kTileTokens,
                    left < 2 * kTileTokens ? left - kTileTokens : kTileTokens);
      }
    }
  }
}

}  // namespace LLM_ISA
}  // namespace llm_kernels
