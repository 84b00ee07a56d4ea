// Exports paged_attention: checks the tensors, fills the argument struct, calls.

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "bindings/checks.h"
#include "llm_kernels/attention.h"

namespace llm_kernels::bindings {
namespace {

CacheView cache_view(const TensorView& cache) {
  return {data_of(cache), cache.stride(0), cache.stride(1), cache.stride(2)};
}

void check_floats(const TensorView& out, const TensorView& query, const TensorView& key, const TensorView& value) {
  check_shape("query_THD", query, {-1, -1, -1});
  check_shape("key_cache", key, {-1, -1, -1, query.size(2)});
  check_shape("value_cache", value, {key.size(0), key.size(1), key.size(2), -1});
  check_shape("out_THV", out, {query.size(0), query.size(1), value.size(3)});
  check_inner_contiguous("out_THV", out);
  check_inner_contiguous("query_THD", query);
  check_inner_contiguous("key_cache", key);
  check_inner_contiguous("value_cache", value);
  check_dtype("out_THV", out, float_dtype("query_THD", query));
  check_dtype("value_cache", value, float_dtype("key_cache", key));
  if (query.size(2) == 0 || query.size(2) % 16 != 0) throw ArgumentError("query_THD", "head size not a multiple of 16");
  if (value.size(3) == 0 || value.size(3) % 16 != 0) throw ArgumentError("value_cache", "size not a multiple of 16");
  if (key.size(1) == 0 || key.size(2) == 0) throw ArgumentError("key_cache", "block size and KV heads must be above 0");
  if (query.size(1) == 0 || query.size(1) % key.size(2) != 0) {
    throw ArgumentError("query_THD", std::to_string(query.size(1)) + " heads are no multiple of " +
                                         std::to_string(key.size(2)) + " KV heads");
  }
}

void check_rows(const TensorView& cu_query_lens, const TensorView& context_lens, const TensorView& block_tables) {
  check_shape("context_lens", context_lens, {-1});
  check_shape("cu_query_lens", cu_query_lens, {context_lens.size(0) + 1});
  check_shape("block_tables", block_tables, {context_lens.size(0), -1});
  check_int("context_lens", context_lens, 32);
  check_int("cu_query_lens", cu_query_lens, 32);
  check_int("block_tables", block_tables, 32);
}

// One float a query head, or null.
const float* per_head(const char* field, const tvm::ffi::Optional<TensorView>& x, std::int64_t num_heads) {
  if (!x.has_value()) return nullptr;
  check_shape(field, x.value(), {num_heads});
  check_inner_contiguous(field, x.value());
  check_dtype(field, x.value(), DType::kFloat32);
  return data_as<const float>(x.value());
}

template <bool kBatchInvariant>
void paged_attention_ffi(TensorView out, TensorView query, TensorView key_cache, TensorView value_cache,
                         TensorView cu_query_lens, TensorView context_lens, TensorView block_tables, double scale,
                         std::int64_t sliding_window, double soft_cap, std::int64_t chunk,
                         tvm::ffi::Optional<TensorView> sinks, tvm::ffi::Optional<TensorView> alibi_slopes, bool causal,
                         int num_threads) {
  guarded([&] {
    check_floats(out, query, key_cache, value_cache);
    check_rows(cu_query_lens, context_lens, block_tables);
    if (sliding_window != -1 && sliding_window < 1) throw ArgumentError("sliding_window", "must be at least 1");
    if (!(soft_cap >= 0)) throw ArgumentError("soft_cap", "must not be negative");
    if (chunk != -1 && chunk < 1) throw ArgumentError("chunk", "must be at least 1");
    if (!causal && (sliding_window != -1 || chunk != -1 || alibi_slopes.has_value())) {
      throw ArgumentError("causal", "without it queries have no position: no window, chunk or ALiBi");
    }
    PagedAttentionArgs args{};
    args.out = data_of(out);
    args.out_stride_token = out.stride(0);
    args.out_stride_head = out.stride(1);
    args.query = data_of(query);
    args.query_stride_token = query.stride(0);
    args.query_stride_head = query.stride(1);
    args.query_dtype = float_dtype("query_THD", query);
    args.key = cache_view(key_cache);
    args.value = cache_view(value_cache);
    args.cache_dtype = float_dtype("key_cache", key_cache);
    args.cu_query_lens = data_as<const std::int32_t>(cu_query_lens);
    args.context_lens = data_as<const std::int32_t>(context_lens);
    args.block_tables = data_as<const std::int32_t>(block_tables);
    args.block_tables_stride = block_tables.stride(0);
    args.num_rows = context_lens.size(0);
    args.num_tokens = query.size(0);
    args.max_blocks = block_tables.size(1);
    args.num_blocks = key_cache.size(0);
    args.block_size = key_cache.size(1);
    args.num_heads = query.size(1);
    args.num_kv_heads = key_cache.size(2);
    args.head_size = query.size(2);
    args.value_size = value_cache.size(3);
    args.scale = static_cast<float>(scale);
    args.sliding_window = sliding_window;
    args.soft_cap = static_cast<float>(soft_cap);
    args.chunk = chunk;
    args.sinks = per_head("sinks", sinks, args.num_heads);
    args.alibi_slopes = per_head("alibi_slopes", alibi_slopes, args.num_heads);
    args.causal = causal;
    args.num_threads = num_threads;
    args.batch_invariant = kBatchInvariant;
    paged_attention(args);
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(paged_attention, paged_attention_ffi<false>);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(invariant_paged_attention, paged_attention_ffi<true>);

}  // namespace llm_kernels::bindings
