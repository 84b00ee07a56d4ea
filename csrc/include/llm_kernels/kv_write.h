// Writing keys and values into the paged cache on the CPU. Knows no framework.
#pragma once

#include <cstdint>

#include "llm_kernels/common.h"

namespace llm_kernels {

struct KvSource {
  const void* data;  // [T, K, size]
  std::int64_t stride_token, stride_head, size;
};

struct KvDestination {
  void* data;  // [N, block_size, K, size]
  std::int64_t stride_block, stride_token, stride_head;
};

struct WriteKvArgs {
  KvSource key, value;  // a value of size 0 is not written: latents are keys alone
  DType source_dtype;
  KvDestination key_cache, value_cache;
  DType cache_dtype;
  const std::int64_t* slot_mapping;  // [T]; -1 skips the token
  std::int64_t num_tokens, num_blocks, block_size, num_kv_heads;
  int num_threads;
};

// Throws ArgumentError, before any write, when a slot lies outside the cache.
void write_kv(const WriteKvArgs& args);

}  // namespace llm_kernels
