// Exports prefill_attention: checks the tensors, fills the argument struct, enqueues on the current stream.

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "bindings/cuda/checks.h"
#include "llm_kernels/cuda/prefill_attention.h"

namespace llm_kernels::bindings::cuda {
namespace {

using tvm::ffi::Optional;

namespace kernels = llm_kernels::cuda;

// The address and all strides but the last in multiples of 16 bytes; those of dimensions of one do not count.
void check_aligned(const char* field, const TensorView& x) {
  check_inner_contiguous(field, x);
  bool fits = reinterpret_cast<std::uintptr_t>(data_of(x)) % 16 == 0;
  const std::int64_t width = x.dtype().bits / 8;
  for (int i = 0; i + 1 < x.ndim(); ++i) fits = fits && (x.size(i) <= 1 || x.stride(i) * width % 16 == 0);
  if (!fits) throw ArgumentError(field, "expected rows that start at multiples of 16 bytes");
}

// The copy engine takes the columns of all heads of a token as one run of panels of 64.
void check_heads(const char* field, const TensorView& cache) {
  if (cache.size(3) % 64 == 0 && cache.size(2) > 1 && cache.stride(2) != cache.size(3)) {
    throw ArgumentError(field, "expected heads that lie next to each other");
  }
}

void check_floats(const TensorView& out, const TensorView& query, const TensorView& key, const TensorView& value) {
  check_shape("query_THD", query, {-1, -1, -1});
  check_shape("key_cache", key, {-1, -1, -1, query.size(2)});
  check_shape("value_cache", value, {key.size(0), key.size(1), key.size(2), query.size(2)});
  check_shape("out_THV", out, {query.size(0), query.size(1), query.size(2)});
  const bool is_half = is_dtype(query, kDLFloat, 16);
  if (!is_half && !is_dtype(query, kDLBfloat, 16)) throw ArgumentError("query_THD", "expected bfloat16 or float16");
  const DLDataTypeCode code = is_half ? kDLFloat : kDLBfloat;
  check_dtype("out_THV", out, code, 16, "the dtype of query_THD");
  if (!is_dtype(key, kDLFloat8_e4m3fn, 8)) {
    check_dtype("key_cache", key, code, 16, "the dtype of query_THD, or float8_e4m3fn");
  }
  check_dtype("value_cache", value, static_cast<DLDataTypeCode>(key.dtype().code), key.dtype().bits,
              "the dtype of key_cache");
  check_aligned("out_THV", out);
  check_aligned("query_THD", query);
  check_aligned("key_cache", key);
  check_aligned("value_cache", value);
  check_heads("key_cache", key);
  check_heads("value_cache", value);
  if (!kernels::has_prefill_attention(static_cast<int>(query.size(2)))) {
    throw ArgumentError("query_THD", "no kernel for head size " + std::to_string(query.size(2)));
  }
  if (key.size(0) == 0 || key.size(1) == 0 || key.size(1) % 8 != 0) {
    throw ArgumentError("key_cache", "expected blocks of a multiple of 8 tokens");
  }
  const std::int64_t num_kv_heads = key.size(2);
  if (num_kv_heads == 0 || query.size(1) % num_kv_heads != 0) {
    throw ArgumentError("query_THD", std::to_string(query.size(1)) + " heads are no multiple of " +
                                         std::to_string(num_kv_heads) + " KV heads");
  }
  if (query.size(1) / num_kv_heads > kernels::kMaxPrefillGroup) {
    throw ArgumentError("query_THD", "too many heads a KV head");
  }
}

void check_rows(const TensorView& cu_query_lens, const TensorView& context_lens, const TensorView& block_tables) {
  check_shape("context_lens", context_lens, {-1});
  check_shape("cu_query_lens", cu_query_lens, {context_lens.size(0) + 1});
  check_shape("block_tables", block_tables, {context_lens.size(0), -1});
  check_dtype("context_lens", context_lens, kDLInt, 32, "int32");
  check_dtype("cu_query_lens", cu_query_lens, kDLInt, 32, "int32");
  check_dtype("block_tables", block_tables, kDLInt, 32, "int32");
  check_inner_contiguous("context_lens", context_lens);
  check_inner_contiguous("cu_query_lens", cu_query_lens);
  check_inner_contiguous("block_tables", block_tables);
}

template <class T>
T* optional_floats(const char* field, const Optional<TensorView>& x, std::initializer_list<std::int64_t> shape) {
  if (!x.has_value()) return nullptr;
  check_shape(field, x.value(), shape);
  check_dtype(field, x.value(), kDLFloat, 32, "float32");
  std::int64_t stride = 1;
  for (int i = x.value().ndim() - 1; i >= 0; --i) {
    if (x.value().size(i) > 1 && x.value().stride(i) != stride) throw ArgumentError(field, "expected contiguous");
    stride *= x.value().size(i);
  }
  return data_as<T>(x.value());
}

kernels::PagedCache cache_of(const TensorView& cache) {
  return {data_of(cache), cache.stride(0), cache.stride(1), cache.stride(2)};
}

void prefill_attention_ffi(TensorView out, TensorView query, TensorView key_cache, TensorView value_cache,
                           Optional<TensorView> key_scale, Optional<TensorView> value_scale, TensorView cu_query_lens,
                           TensorView context_lens, TensorView block_tables, Optional<TensorView> sinks,
                           Optional<TensorView> log_sum_exp, TensorView tile_counter, std::int64_t first_row,
                           double scale, double soft_cap, std::int64_t sliding_window, std::int64_t chunk, bool causal,
                           int num_processors) {
  guarded([&] {
    check_floats(out, query, key_cache, value_cache);
    check_rows(cu_query_lens, context_lens, block_tables);
    const std::int64_t num_rows = context_lens.size(0);
    if (first_row < 0 || first_row > num_rows) throw ArgumentError("num_decodes", "outside the rows");
    if (!(scale > 0)) throw ArgumentError("scale", "must be above 0");
    if (!(soft_cap >= 0)) throw ArgumentError("soft_cap", "must not be negative");
    if (sliding_window < 0) throw ArgumentError("sliding_window", "must not be negative");
    if (chunk < 0) throw ArgumentError("chunk", "must not be negative");
    if (!causal && (sliding_window != 0 || chunk != 0)) {
      throw ArgumentError("causal", "without it queries have no position: no window or chunk");
    }
    const bool is_e4m3 = is_dtype(key_cache, kDLFloat8_e4m3fn, 8);
    if (!is_e4m3 && (key_scale.has_value() || value_scale.has_value())) {
      throw ArgumentError("key_scale", "only a float8_e4m3fn cache has scales");
    }
    check_shape("tile_counter", tile_counter, {1});
    check_dtype("tile_counter", tile_counter, kDLInt, 32, "int32");
    if (num_rows == first_row || query.size(0) <= first_row || query.size(1) == 0) return;
    kernels::PrefillAttentionArgs args{};
    args.out = data_of(out);
    args.out_stride_token = out.stride(0);
    args.out_stride_head = out.stride(1);
    args.query = data_of(query);
    args.query_stride_token = query.stride(0);
    args.query_stride_head = query.stride(1);
    args.key = cache_of(key_cache);
    args.value = cache_of(value_cache);
    args.cu_query_lens = data_as<const std::int32_t>(cu_query_lens);
    args.context_lens = data_as<const std::int32_t>(context_lens);
    args.block_tables = data_as<const std::int32_t>(block_tables);
    args.block_tables_stride = block_tables.stride(0);
    args.key_scale = optional_floats<const float>("key_scale", key_scale, {key_cache.size(2)});
    args.value_scale = optional_floats<const float>("value_scale", value_scale, {key_cache.size(2)});
    args.sinks = optional_floats<const float>("sinks", sinks, {query.size(1)});
    args.log_sum_exp = optional_floats<float>("log_sum_exp", log_sum_exp, {query.size(1), query.size(0)});
    args.tile_counter = data_as<std::int32_t>(tile_counter);
    args.first_row = static_cast<std::int32_t>(first_row);
    args.num_rows = static_cast<std::int32_t>(num_rows - first_row);
    args.num_tokens = static_cast<std::int32_t>(query.size(0));
    args.num_heads = static_cast<std::int32_t>(query.size(1));
    args.num_kv_heads = static_cast<std::int32_t>(key_cache.size(2));
    args.head_size = static_cast<std::int32_t>(query.size(2));
    args.num_blocks = static_cast<std::int32_t>(key_cache.size(0));
    args.block_size = static_cast<std::int32_t>(key_cache.size(1));
    args.scale = static_cast<float>(scale);
    args.soft_cap = static_cast<float>(soft_cap);
    args.sliding_window = static_cast<std::int32_t>(sliding_window);
    args.chunk = static_cast<std::int32_t>(chunk);
    args.causal = causal;
    args.is_half = is_dtype(query, kDLFloat, 16);
    args.is_e4m3 = is_e4m3;
    args.num_processors = num_processors;
    const DeviceGuard guard(query);
    check_status("prefill_attention", kernels::prefill_attention(args, stream_of(query)));
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(prefill_attention, prefill_attention_ffi);

}  // namespace llm_kernels::bindings::cuda
