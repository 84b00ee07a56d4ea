// Plans the work items of paged attention, checks everything that will be read, runs the items on threads and
// combines those whose keys were split. Knows nothing about vectors; the kernels know nothing about rows.

#include "llm_kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/attention/kernel.h"
#include "cpu/parallel.h"

namespace llm_kernels {
namespace {

constexpr std::int64_t kMinSplitKeys = 512;

// Consecutive items that hold the partial sums of the same queries.
struct SplitGroup {
  std::int64_t first_item, num_items;
};

struct Plan {
  std::vector<AttentionItem> items;
  std::vector<SplitGroup> splits;
  std::vector<float> partials;
};

std::string row_name(std::int64_t row) { return "row " + std::to_string(row); }

void check_row(const PagedAttentionArgs& args, std::int64_t row) {
  const std::int64_t begin = args.cu_query_lens[row], end = args.cu_query_lens[row + 1];
  if (begin < 0 || end < begin || end > args.num_tokens) {
    throw ArgumentError("cu_query_lens", row_name(row) + " spans tokens " + std::to_string(begin) + ".." +
                                             std::to_string(end) + " of " + std::to_string(args.num_tokens));
  }
  const std::int64_t context = args.context_lens[row];
  if (args.causal && context != 0 && context < end - begin) {
    throw ArgumentError("context_lens", row_name(row) + " has " + std::to_string(end - begin) +
                                            " query tokens but a context of " + std::to_string(context));
  }
  const std::int64_t blocks = (context + args.block_size - 1) / args.block_size;
  if (blocks > args.max_blocks) {
    throw ArgumentError("block_tables", row_name(row) + " needs " + std::to_string(blocks) + " blocks, the table has " +
                                            std::to_string(args.max_blocks));
  }
  const std::int32_t* table = args.block_tables + row * args.block_tables_stride;
  // Blocks wholly before the first key were perhaps given back: they are not read.
  const std::int64_t first = args.causal && context != 0 ? first_key(args, context - (end - begin)) : 0;
  for (std::int64_t i = first / args.block_size; begin < end && i < blocks; ++i) {
    if (table[i] < 0 || table[i] >= args.num_blocks) {
      throw ArgumentError("block_tables", row_name(row) + " names block " + std::to_string(table[i]) + " of " +
                                              std::to_string(args.num_blocks));
    }
  }
}

// The items of one row, unsplit: blocks of query tokens times KV heads.
void add_row(const PagedAttentionArgs& args, std::int64_t row, std::vector<AttentionItem>& items) {
  const std::int64_t begin = args.cu_query_lens[row], end = args.cu_query_lens[row + 1];
  const std::int64_t context = args.context_lens[row];
  const std::int64_t block = std::max<std::int64_t>(1, kMaxItemRows / (args.num_heads / args.num_kv_heads));
  for (std::int64_t token = begin; token < end; token += block) {
    AttentionItem item{};
    item.row = row;
    item.token = token;
    item.num_tokens = std::min(block, end - token);
    item.position = context == 0 ? 0 : context - (end - token);
    item.key_end = context == 0 ? 0 : item.position + item.num_tokens;
    if (args.causal) {
      // Not rounded down: what lies before is not this row's, and a weight of 0 does not hide a NaN.
      item.key_begin = first_key(args, item.position);
    } else {
      item.key_end = context;
    }
    item.counts_sinks = true;
    for (item.kv_head = 0; item.kv_head < args.num_kv_heads; ++item.kv_head) items.push_back(item);
  }
}

// With fewer items than threads can share evenly, items over many keys are cut into runs of keys.
void split_keys(const PagedAttentionArgs& args, Plan& plan) {
  const std::int64_t wanted = 3 * static_cast<std::int64_t>(args.num_threads);
  const std::int64_t whole = static_cast<std::int64_t>(plan.items.size());
  if (args.batch_invariant || args.num_threads <= 1 || whole == 0 || whole >= wanted) return;
  const std::int64_t pieces = (wanted + whole - 1) / whole;
  std::vector<AttentionItem> items;
  std::vector<std::int64_t> offsets;
  std::int64_t floats = 0;
  for (const AttentionItem& item : plan.items) {
    const std::int64_t keys = item.key_end - item.key_begin;
    const std::int64_t parts = std::min(pieces, keys / kMinSplitKeys);
    const std::int64_t tiles = (keys + kKeyTile - 1) / kKeyTile;
    if (parts >= 2) plan.splits.push_back({static_cast<std::int64_t>(items.size()), parts});
    for (std::int64_t part = 0; part < std::max<std::int64_t>(parts, 1); ++part) {
      AttentionItem piece = item;
      if (parts >= 2) {
        piece.key_begin = item.key_begin + tiles * part / parts * kKeyTile;
        piece.key_end = std::min(item.key_end, item.key_begin + tiles * (part + 1) / parts * kKeyTile);
        piece.counts_sinks = part == 0;
      }
      offsets.push_back(parts >= 2 ? floats : -1);
      if (parts >= 2) floats += item.num_tokens * (args.num_heads / args.num_kv_heads) * (args.value_size + 2);
      items.push_back(piece);
    }
  }
  plan.partials.resize(static_cast<std::size_t>(floats));
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (offsets[i] >= 0) items[i].partial = plan.partials.data() + offsets[i];
  }
  plan.items = std::move(items);
}

Plan make_plan(const PagedAttentionArgs& args) {
  if (args.num_rows > 0 && args.cu_query_lens[0] != 0) throw ArgumentError("cu_query_lens", "the first must be 0");
  for (std::int64_t row = 0; row < args.num_rows; ++row) check_row(args, row);
  Plan plan;
  for (std::int64_t row = 0; row < args.num_rows; ++row) add_row(args, row, plan.items);
  split_keys(args, plan);
  if (plan.splits.empty() && args.num_threads > 1) {
    // Long items first, so that the threads end together.
    std::stable_sort(plan.items.begin(), plan.items.end(), [](const AttentionItem& a, const AttentionItem& b) {
      return (a.key_end - a.key_begin) * a.num_tokens > (b.key_end - b.key_begin) * b.num_tokens;
    });
  }
  return plan;
}

void store_bf16(float value, std::uint16_t* out) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  *out = static_cast<std::uint16_t>(value == value ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fc0u);
}

// Adds up one query row of the pieces in `group` and writes it out.
void combine_row(const PagedAttentionArgs& args, const Plan& plan, const SplitGroup& group, std::int64_t m) {
  const std::int64_t d = args.value_size, heads = args.num_heads / args.num_kv_heads;
  float maximum = -INFINITY, weight = 0.0f;
  for (std::int64_t i = 0; i < group.num_items; ++i) {
    const float piece_max = plan.items[group.first_item + i].partial[m * (d + 2) + d];
    maximum = piece_max > maximum ? piece_max : maximum;
  }
  std::vector<float> sum(static_cast<std::size_t>(d), 0.0f);
  for (std::int64_t i = 0; i < group.num_items; ++i) {
    const float* piece = plan.items[group.first_item + i].partial + m * (d + 2);
    if (piece[d] == -INFINITY) continue;
    const float share = std::exp(piece[d] - maximum);
    weight += share * piece[d + 1];
    for (std::int64_t j = 0; j < d; ++j) sum[j] += share * piece[j];
  }
  const AttentionItem& item = plan.items[group.first_item];
  const float inverse = weight == 0.0f ? 0.0f : 1.0f / weight;
  const std::int64_t at = (item.token + m / heads) * args.out_stride_token +
                          (item.kv_head * heads + m % heads) * args.out_stride_head;
  for (std::int64_t j = 0; j < d; ++j) {
    if (args.query_dtype == DType::kFloat32) {
      static_cast<float*>(args.out)[at + j] = sum[j] * inverse;
    } else {
      store_bf16(sum[j] * inverse, static_cast<std::uint16_t*>(args.out) + at + j);
    }
  }
}

AttentionKernel kernel_for(Isa isa) {
  switch (isa) {
#ifdef LLM_KERNELS_X86
    case Isa::kAmx:
    case Isa::kAvx512:
      return avx512::attention_item;
    case Isa::kAvx2:
      return avx2::attention_item;
#endif
    default:
      return baseline::attention_item;
  }
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args) {
  const std::int64_t group = args.num_heads / args.num_kv_heads;
  if (group > kMaxGroup) {
    throw ArgumentError("query_THD", "more than " + std::to_string(kMaxGroup) + " query heads per KV head");
  }
  Plan plan = make_plan(args);
  const AttentionKernel kernel = kernel_for(current_isa());
  const auto scratch_floats = static_cast<std::size_t>(attention_scratch_floats(args.head_size, args.value_size));
  parallel_items(static_cast<std::int64_t>(plan.items.size()), args.num_threads, [&](std::int64_t i) {
    // Kept by the thread: a fresh buffer of this size would cost page faults at every call.
    thread_local std::vector<float> scratch;
    if (scratch.size() < scratch_floats) scratch.resize(scratch_floats);
    kernel(args, plan.items[static_cast<std::size_t>(i)], scratch.data());
  });
  parallel_items(static_cast<std::int64_t>(plan.splits.size()), args.num_threads, [&](std::int64_t i) {
    const SplitGroup& split = plan.splits[static_cast<std::size_t>(i)];
    const std::int64_t rows = plan.items[static_cast<std::size_t>(split.first_item)].num_tokens * group;
    for (std::int64_t m = 0; m < rows; ++m) combine_row(args, plan, split, m);
  });
}

}  // namespace llm_kernels
