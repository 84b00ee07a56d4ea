// Which query tokens, which KV head and which keys a piece of work of the prefill kernel covers. Host integers give the
// number of pieces; everything else is read from device memory. Knows nothing about tiles in shared memory.
#pragma once

#include <cstdint>

namespace llm_kernels::cuda::attention {

// The rows of a step and how scores are hidden.
struct PrefillRows {
  const std::int32_t* cu_query_lens;
  const std::int32_t* context_lens;
  const std::int32_t* block_tables;
  std::int64_t block_tables_stride;
  std::int32_t first_row, num_rows, num_kv_heads;
  std::int32_t tokens_per_tile;         // query tokens; each is `group` rows of a tile
  std::int32_t num_pieces;              // (tokens / tokens_per_tile + rows) * KV heads: an upper bound, some are empty
  std::int32_t block_size, box_tokens;  // box_tokens: keys that one copy takes; divides block_size
  std::int32_t section_keys;            // keys times KV heads that are worked on at the same time
  std::int32_t window, chunk;           // 0: none
  bool causal;
};

struct Piece {
  std::int32_t row;  // -1: there is no further work
  std::int32_t kv_head;
  std::int32_t first_token;  // of the query tokens of the step
  std::int32_t num_tokens;   // 0: nothing to do
  std::int32_t position;     // of the first query token in its sequence
  std::int32_t context;      // tokens of the row in the cache
  std::int32_t key_begin;    // a multiple of box_tokens
  std::int32_t key_end;      // keys from here on are seen by no query of the piece
};

__device__ __forceinline__ int lowest_key(const PrefillRows& rows, int position) {
  int lowest = 0;
  if (rows.window > 0) lowest = max(position + 1 - rows.window, 0);
  if (rows.chunk > 0) lowest = max(lowest, max(position, 0) / rows.chunk * rows.chunk);
  return lowest;
}

// The i-th row starts at block (its first token) / tokens_per_tile + i, which leaves room for all its blocks. Within a
// row sections of KV heads come one after the other, as many heads as have their keys in the L2 cache together; within
// a section the last blocks come first, which see the most keys, and heads vary fastest.
__device__ __forceinline__ Piece find_piece(const PrefillRows& rows, int index) {
  Piece piece{};
  if (index >= rows.num_pieces) {
    piece.row = -1;
    return piece;
  }
  index = rows.num_pieces - 1 - index;
  const std::int32_t* begins = rows.cu_query_lens + rows.first_row;
  const int origin = begins[0], block = index / rows.num_kv_heads;
  int low = 0, high = rows.num_rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if ((begins[middle] - origin) / rows.tokens_per_tile + middle <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int row_begin = begins[low], query_len = begins[low + 1] - row_begin;
  const int context = rows.context_lens[rows.first_row + low];
  const int first_block = (row_begin - origin) / rows.tokens_per_tile + low;
  const int num_blocks = low + 1 == rows.num_rows
                             ? rows.num_pieces / rows.num_kv_heads - first_block
                             : (begins[low + 1] - origin) / rows.tokens_per_tile + 1 + low - first_block;
  const int section_heads = max(1, min(rows.num_kv_heads, rows.section_keys / max(context, 1)));
  const int in_row = index - first_block * rows.num_kv_heads;
  const int section = in_row / (section_heads * num_blocks);
  const int in_section = in_row - section * section_heads * num_blocks;
  const int num_heads = min(section_heads, rows.num_kv_heads - section * section_heads);
  piece.kv_head = section * section_heads + in_section % num_heads;
  const int first_query = in_section / num_heads * rows.tokens_per_tile;
  piece.row = rows.first_row + low;
  piece.num_tokens = max(0, min(rows.tokens_per_tile, query_len - first_query));
  if (piece.num_tokens == 0) return piece;
  piece.first_token = row_begin + first_query;
  piece.context = context;
  piece.position = piece.context - query_len + first_query;
  piece.key_end = piece.context;
  if (rows.causal) {
    piece.key_begin = lowest_key(rows, piece.position) / rows.box_tokens * rows.box_tokens;
    piece.key_end = min(piece.context, piece.position + piece.num_tokens);
  }
  return piece;
}

}  // namespace llm_kernels::cuda::attention
