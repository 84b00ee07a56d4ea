// Exports write_kv and write_latent: check the tensors, fill the argument struct, call.

#include <tvm/ffi/function.h>

#include "bindings/checks.h"
#include "llm_kernels/kv_write.h"

namespace llm_kernels::bindings {
namespace {

void write_kv_ffi(TensorView key, TensorView value, TensorView key_cache, TensorView value_cache,
                  TensorView slot_mapping, int num_threads) {
  guarded([&] {
    check_shape("key_TKD", key, {-1, -1, -1});
    check_shape("value_TKV", value, {key.size(0), key.size(1), -1});
    check_shape("key_cache", key_cache, {-1, -1, key.size(1), key.size(2)});
    check_shape("value_cache", value_cache, {key_cache.size(0), key_cache.size(1), key.size(1), value.size(2)});
    check_shape("slot_mapping", slot_mapping, {key.size(0)});
    check_int("slot_mapping", slot_mapping, 64);
    check_inner_contiguous("key_TKD", key);
    check_inner_contiguous("value_TKV", value);
    check_inner_contiguous("key_cache", key_cache);
    check_inner_contiguous("value_cache", value_cache);
    WriteKvArgs args{};
    args.key = {data_of(key), key.stride(0), key.stride(1), key.size(2)};
    args.value = {data_of(value), value.stride(0), value.stride(1), value.size(2)};
    args.source_dtype = float_dtype("key_TKD", key);
    check_dtype("value_TKV", value, args.source_dtype);
    args.key_cache = {data_of(key_cache), key_cache.stride(0), key_cache.stride(1), key_cache.stride(2)};
    args.value_cache = {data_of(value_cache), value_cache.stride(0), value_cache.stride(1), value_cache.stride(2)};
    args.cache_dtype = float_dtype("key_cache", key_cache);
    check_dtype("value_cache", value_cache, args.cache_dtype);
    args.slot_mapping = data_as<const std::int64_t>(slot_mapping);
    args.num_tokens = key.size(0);
    args.num_blocks = key_cache.size(0);
    args.block_size = key_cache.size(1);
    args.num_kv_heads = key.size(1);
    args.num_threads = num_threads;
    write_kv(args);
  });
}

void write_latent_ffi(TensorView latent, TensorView latent_cache, TensorView slot_mapping, int num_threads) {
  guarded([&] {
    check_shape("latent_TL", latent, {-1, -1});
    check_shape("latent_cache", latent_cache, {-1, -1, latent.size(1)});
    check_shape("slot_mapping", slot_mapping, {latent.size(0)});
    check_int("slot_mapping", slot_mapping, 64);
    check_inner_contiguous("latent_TL", latent);
    check_inner_contiguous("latent_cache", latent_cache);
    WriteKvArgs args{};
    args.key = {data_of(latent), latent.stride(0), 0, latent.size(1)};
    args.source_dtype = float_dtype("latent_TL", latent);
    args.key_cache = {data_of(latent_cache), latent_cache.stride(0), latent_cache.stride(1), 0};
    args.cache_dtype = float_dtype("latent_cache", latent_cache);
    args.slot_mapping = data_as<const std::int64_t>(slot_mapping);
    args.num_tokens = latent.size(0);
    args.num_blocks = latent_cache.size(0);
    args.block_size = latent_cache.size(1);
    args.num_kv_heads = 1;
    args.num_threads = num_threads;
    write_kv(args);
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(write_latent, write_latent_ffi);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(write_kv, write_kv_ffi);

}  // namespace llm_kernels::bindings
