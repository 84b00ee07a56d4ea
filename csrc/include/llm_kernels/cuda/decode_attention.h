// Attention of rows of one query token over a paged KV cache on Hopper. Knows no framework: strides in elements.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdint>

namespace llm_kernels::cuda {

// One of the two caches, [N, block_size, K, D], D contiguous; strides and the address are multiples of 16 bytes.
struct DecodeCache {
  const void* data;
  std::int64_t stride_block, stride_token, stride_head;
  const float* scale;  // [K], what the cache's numbers are multiplied by; null: 1
};

// Sums over the keys that a row shares with others, computed before; see csrc/cuda/decode/decode_kernel.cuh.
struct PrefixParts {
  const std::int32_t* lens;  // [R], keys that they cover: the kernel leaves these out; null: there are none
  const float* sums;         // [R, H, parts, D], normalised
  const float* states;       // [R, H, parts], the log2 of their weights
  std::int32_t num_parts;
};

struct DecodeAttentionArgs {
  void* out;  // [R, H, D], dtype of the query
  std::int64_t out_stride_row, out_stride_head;
  const void* query;  // [R, H, D]; strides and address multiples of 4 bytes
  std::int64_t query_stride_row, query_stride_head;
  DecodeCache key, value;
  PrefixParts prefix;
  const std::int32_t* context_lens;  // [R]; a row with 0 yields zeros
  const std::int32_t* block_tables;  // [R, ...]
  std::int64_t block_tables_stride;
  const float* sinks;  // [H]; null: none
  std::int32_t num_rows, num_heads, num_kv_heads, head_size;
  std::int32_t block_size;      // a multiple of 16
  float scale;                  // of the scores
  float soft_cap;               // 0: none
  std::int32_t sliding_window;  // 0: none
  std::int32_t chunk;           // 0: none
  bool is_half;                 // the query is fp16, else bf16
  bool is_float8_cache;         // the caches are e4m3, else of the query's dtype
  std::int32_t splits;          // blocks that share a row and a KV head: 1, 2, 4, 8 or 16
  std::int32_t warps;           // of a block: 4; in bfloat16 at head size 128 for up to 8 heads a KV head also 1, 2, 8
};

// Query heads that one KV head may have: they are the rows of a matrix fragment.
constexpr int kMaxDecodeGroup = 16;
// Keys that a warp takes at once; none of its runs crosses a block of the cache.
constexpr int kDecodeKeys = 16;

// Whether there is a kernel for this head size.
bool has_decode_attention(int head_size);

cudaError_t decode_attention(const DecodeAttentionArgs& args, cudaStream_t stream);

// The same in even shares of all keys for every warp, whatever the rows' lengths, for bf16 at head size 128. Of `call`
// `splits` and `warps` are not looked at.
struct EvenDecodeArgs {
  DecodeAttentionArgs call;
  float* parts;              // [blocks * warps, even_part_floats]
  std::uint32_t* arrivals;   // [blocks * warps], zeros before and after
  std::int32_t num_blocks;   // of kEvenWarps warps
  std::int32_t least_tiles;  // of a share, from 1
  std::int64_t num_cache_blocks;
};

// Warps of a block.
constexpr int kEvenWarps = 4;
// Floats of a part: its sums, then maxima and weights; in octets of query heads.
constexpr int even_part_floats(int head_size, int octets) { return octets * (8 * head_size + 16); }
constexpr int even_octets(int group) { return group <= 8 ? 1 : 2; }

cudaError_t decode_attention_even(const EvenDecodeArgs& args, cudaStream_t stream);

}  // namespace llm_kernels::cuda
