// What the planner of paged attention hands to the kernel of an instruction set: one work item and its scratch.
#pragma once

#include <cstdint>

#include "llm_kernels/attention.h"

namespace llm_kernels {

// A run of query tokens of one row under one KV head, over the keys [key_begin, key_end).
struct AttentionItem {
  std::int64_t row, kv_head;
  std::int64_t token;      // first query token, as an index into T
  std::int64_t position;   // its position in the sequence
  std::int64_t num_tokens;
  std::int64_t key_begin, key_end;
  bool counts_sinks;  // false in all but the first piece of a split item
  float* partial;     // null: write to `out`. Else [num_tokens * group, V + 2]: sum, running maximum, weight
};

constexpr std::int64_t kKeyTile = 64;
constexpr std::int64_t kMaxItemRows = 96;  // query tokens * query heads per KV head
constexpr std::int64_t kMaxGroup = kMaxItemRows;

// Floats of scratch one thread needs.
constexpr std::int64_t attention_scratch_floats(std::int64_t head_size, std::int64_t value_size) {
  return kMaxItemRows * (head_size + value_size + kKeyTile + 2) + kKeyTile * (head_size + value_size) + 64;
}

using AttentionKernel = void (*)(const PagedAttentionArgs& args, const AttentionItem& item, float* scratch);

#define LLM_DECLARE_ATTENTION(isa)                                                                 \
  namespace isa {                                                                                  \
  void attention_item(const PagedAttentionArgs& args, const AttentionItem& item, float* scratch);  \
  }
LLM_DECLARE_ATTENTION(baseline)
LLM_DECLARE_ATTENTION(avx2)
LLM_DECLARE_ATTENTION(avx512)
#undef LLM_DECLARE_ATTENTION

}  // namespace llm_kernels
