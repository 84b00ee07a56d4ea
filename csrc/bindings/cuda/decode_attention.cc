// Exports decode_attention and decode_attention_even: checks the tensors, fills the argument struct, enqueues on the current stream.

#include "llm_kernels/cuda/decode_attention.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "bindings/cuda/checks.h"

namespace llm_kernels::bindings::cuda {
namespace {

using tvm::ffi::Optional;

namespace kernels = llm_kernels::cuda;

void check_contiguous(const char* field, const TensorView& x) {
  std::int64_t stride = 1;
  for (int i = x.ndim() - 1; i >= 0; --i) {
    if (x.size(i) > 1 && x.stride(i) != stride) throw ArgumentError(field, "expected contiguous");
    stride *= x.size(i);
  }
}

// The address and all strides but the last in multiples of so many bytes; those of dimensions of one do not count.
void check_decode_alignment(const char* field, const TensorView& x, std::int64_t bytes) {
  check_inner_contiguous(field, x);
  bool fits = reinterpret_cast<std::uintptr_t>(data_of(x)) % bytes == 0;
  const std::int64_t width = x.dtype().bits / 8;
  for (int i = 0; i + 1 < x.ndim(); ++i) fits = fits && (x.size(i) <= 1 || x.stride(i) * width % bytes == 0);
  if (!fits) throw ArgumentError(field, "expected rows that start at multiples of " + std::to_string(bytes) + " bytes");
}

void check_tensors(const TensorView& out, const TensorView& query, const TensorView& key, const TensorView& value) {
  check_shape("query_THD", query, {-1, -1, -1});
  check_shape("key_cache", key, {-1, -1, -1, query.size(2)});
  check_shape("value_cache", value, {key.size(0), key.size(1), key.size(2), query.size(2)});
  check_shape("out_THV", out, {-1, query.size(1), query.size(2)});
  const bool is_half = is_dtype(query, kDLFloat, 16);
  if (!is_half && !is_dtype(query, kDLBfloat, 16)) throw ArgumentError("query_THD", "expected bfloat16 or float16");
  const DLDataTypeCode code = is_half ? kDLFloat : kDLBfloat;
  check_dtype("out_THV", out, code, 16, "the dtype of query_THD");
  if (!is_dtype(key, kDLFloat8_e4m3fn, 8)) {
    check_dtype("key_cache", key, code, 16, "the dtype of query_THD, or float8_e4m3fn");
  }
  check_dtype("value_cache", value, static_cast<DLDataTypeCode>(key.dtype().code), key.dtype().bits,
              "the dtype of key_cache");
  check_inner_contiguous("out_THV", out);
  check_decode_alignment("query_THD", query, 4);
  check_decode_alignment("key_cache", key, 16);
  check_decode_alignment("value_cache", value, 16);
  if (!kernels::has_decode_attention(static_cast<int>(query.size(2)))) {
    throw ArgumentError("query_THD", "no kernel for head size " + std::to_string(query.size(2)));
  }
  if (key.size(1) == 0 || key.size(1) % kernels::kDecodeKeys != 0) {
    throw ArgumentError("key_cache", "expected blocks of a multiple of 16 tokens");
  }
  const std::int64_t num_kv_heads = key.size(2);
  if (num_kv_heads == 0 || query.size(1) % num_kv_heads != 0) {
    throw ArgumentError("query_THD", std::to_string(query.size(1)) + " heads are no multiple of " +
                                         std::to_string(num_kv_heads) + " KV heads");
  }
  if (query.size(1) / num_kv_heads > kernels::kMaxDecodeGroup) {
    throw ArgumentError("query_THD", "too many heads a KV head");
  }
}

void check_decode_rows(const TensorView& context_lens, const TensorView& block_tables, std::int64_t num_rows) {
  check_shape("context_lens", context_lens, {-1});
  check_shape("block_tables", block_tables, {context_lens.size(0), -1});
  check_dtype("context_lens", context_lens, kDLInt, 32, "int32");
  check_dtype("block_tables", block_tables, kDLInt, 32, "int32");
  check_inner_contiguous("context_lens", context_lens);
  check_inner_contiguous("block_tables", block_tables);
  if (num_rows < 0 || num_rows > context_lens.size(0) || num_rows > 65535) {
    throw ArgumentError("num_decodes", "outside the rows");
  }
}

const float* floats(const char* field, const Optional<TensorView>& x, std::initializer_list<std::int64_t> shape) {
  if (!x.has_value()) return nullptr;
  check_shape(field, x.value(), shape);
  check_dtype(field, x.value(), kDLFloat, 32, "float32");
  check_contiguous(field, x.value());
  return data_as<const float>(x.value());
}

kernels::DecodeCache decode_cache(const TensorView& cache, const float* scale) {
  return {data_of(cache), cache.stride(0), cache.stride(1), cache.stride(2), scale};
}

kernels::PrefixParts prefix_parts(const Optional<TensorView>& lens, const Optional<TensorView>& sums,
                                  const Optional<TensorView>& states, std::int64_t num_rows, const TensorView& query) {
  if (!lens.has_value()) return {};
  if (!sums.has_value() || !states.has_value()) throw ArgumentError("partial", "expected with prefix_lens");
  check_shape("prefix_lens", lens.value(), {num_rows});
  check_dtype("prefix_lens", lens.value(), kDLInt, 32, "int32");
  check_contiguous("prefix_lens", lens.value());
  const std::int64_t parts = sums.value().ndim() == 4 ? sums.value().size(2) : -1;
  kernels::PrefixParts prefix{};
  prefix.lens = data_as<const std::int32_t>(lens.value());
  prefix.sums = floats("partial", sums, {num_rows, query.size(1), parts, query.size(2)});
  prefix.states = floats("partial_state", states, {num_rows, query.size(1), parts});
  prefix.num_parts = static_cast<std::int32_t>(parts);
  return prefix;
}

// What both kernels take; prefixes and how a call is shared out are filled in by the callers.
kernels::DecodeAttentionArgs decode_call(const TensorView& out, const TensorView& query, const TensorView& key_cache,
                                         const TensorView& value_cache, const Optional<TensorView>& key_scale,
                                         const Optional<TensorView>& value_scale, const TensorView& context_lens,
                                         const TensorView& block_tables, const Optional<TensorView>& sinks,
                                         std::int64_t num_rows, double scale, double soft_cap,
                                         std::int64_t sliding_window, std::int64_t chunk) {
  check_tensors(out, query, key_cache, value_cache);
  check_decode_rows(context_lens, block_tables, num_rows);
  if (num_rows > query.size(0) || num_rows > out.size(0)) throw ArgumentError("num_decodes", "outside the tokens");
  if (!(soft_cap >= 0)) throw ArgumentError("soft_cap", "must not be negative");
  if (sliding_window < 0) throw ArgumentError("sliding_window", "must not be negative");
  if (chunk < 0) throw ArgumentError("chunk", "must not be negative");
  kernels::DecodeAttentionArgs args{};
  args.out = data_of(out);
  args.out_stride_row = out.stride(0);
  args.out_stride_head = out.stride(1);
  args.query = data_of(query);
  args.query_stride_row = query.stride(0);
  args.query_stride_head = query.stride(1);
  args.key = decode_cache(key_cache, floats("key_scale", key_scale, {key_cache.size(2)}));
  args.value = decode_cache(value_cache, floats("value_scale", value_scale, {key_cache.size(2)}));
  args.context_lens = data_as<const std::int32_t>(context_lens);
  args.block_tables = data_as<const std::int32_t>(block_tables);
  args.block_tables_stride = block_tables.stride(0);
  args.sinks = floats("sinks", sinks, {query.size(1)});
  args.num_rows = static_cast<std::int32_t>(num_rows);
  args.num_heads = static_cast<std::int32_t>(query.size(1));
  args.num_kv_heads = static_cast<std::int32_t>(key_cache.size(2));
  args.head_size = static_cast<std::int32_t>(query.size(2));
  args.block_size = static_cast<std::int32_t>(key_cache.size(1));
  args.scale = static_cast<float>(scale);
  args.soft_cap = static_cast<float>(soft_cap);
  args.sliding_window = static_cast<std::int32_t>(sliding_window);
  args.chunk = static_cast<std::int32_t>(chunk);
  args.is_half = is_dtype(query, kDLFloat, 16);
  args.is_float8_cache = is_dtype(key_cache, kDLFloat8_e4m3fn, 8);
  return args;
}

void decode_attention_ffi(TensorView out, TensorView query, TensorView key_cache, TensorView value_cache,
                          Optional<TensorView> key_scale, Optional<TensorView> value_scale, TensorView context_lens,
                          TensorView block_tables, Optional<TensorView> sinks, Optional<TensorView> prefix_lens,
                          Optional<TensorView> partial, Optional<TensorView> partial_state, std::int64_t num_rows,
                          double scale, double soft_cap, std::int64_t sliding_window, std::int64_t chunk, int splits,
                          int warps) {
  guarded([&] {
    kernels::DecodeAttentionArgs args =
        decode_call(out, query, key_cache, value_cache, key_scale, value_scale, context_lens, block_tables, sinks,
                    num_rows, scale, soft_cap, sliding_window, chunk);
    if (splits < 1 || splits > 16 || (splits & (splits - 1)) != 0) {
      throw ArgumentError("splits", "expected 1, 2, 4, 8 or 16");
    }
    if (warps != 1 && warps != 2 && warps != 4 && warps != 8) throw ArgumentError("warps", "expected 1, 2, 4 or 8");
    if (num_rows == 0) return;
    args.prefix = prefix_parts(prefix_lens, partial, partial_state, num_rows, query);
    args.splits = splits;
    args.warps = warps;
    const DeviceGuard guard(query);
    check_status("decode_attention", kernels::decode_attention(args, stream_of(query)));
  });
}

void decode_attention_even_ffi(TensorView out, TensorView query, TensorView key_cache, TensorView value_cache,
                               Optional<TensorView> key_scale, Optional<TensorView> value_scale,
                               TensorView context_lens, TensorView block_tables, Optional<TensorView> sinks,
                               Optional<TensorView> prefix_lens, Optional<TensorView> partial,
                               Optional<TensorView> partial_state, TensorView parts, TensorView arrivals,
                               std::int64_t num_rows, double scale, double soft_cap, std::int64_t sliding_window,
                               std::int64_t chunk, int num_blocks, int least_tiles) {
  guarded([&] {
    kernels::EvenDecodeArgs args{};
    args.call = decode_call(out, query, key_cache, value_cache, key_scale, value_scale, context_lens, block_tables,
                            sinks, num_rows, scale, soft_cap, sliding_window, chunk);
    if (num_rows == 0) return;
    if (num_blocks < 1) throw ArgumentError("num_blocks", "must be positive");
    if (least_tiles < 1) throw ArgumentError("least_tiles", "must be positive");
    const std::int64_t num_warps = std::int64_t{num_blocks} * kernels::kEvenWarps;
    const int octets = kernels::even_octets(args.call.num_heads / args.call.num_kv_heads);
    check_shape("parts", parts, {num_warps, kernels::even_part_floats(args.call.head_size, octets)});
    check_shape("arrivals", arrivals, {num_warps});
    check_dtype("parts", parts, kDLFloat, 32, "float32");
    check_dtype("arrivals", arrivals, kDLInt, 32, "int32");
    check_contiguous("parts", parts);
    check_contiguous("arrivals", arrivals);
    args.call.prefix = prefix_parts(prefix_lens, partial, partial_state, num_rows, query);
    args.parts = data_as<float>(parts);
    args.arrivals = data_as<std::uint32_t>(arrivals);
    args.num_blocks = num_blocks;
    args.least_tiles = least_tiles;
    args.num_cache_blocks = key_cache.size(0);
    const DeviceGuard guard(query);
    check_status("decode_attention_even", kernels::decode_attention_even(args, stream_of(query)));
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode_attention, decode_attention_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(decode_attention_even, decode_attention_even_ffi);

}  // namespace llm_kernels::bindings::cuda
