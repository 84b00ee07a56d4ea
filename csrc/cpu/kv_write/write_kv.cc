// Writes keys and values to their slots, after checking every slot.

#include "llm_kernels/kv_write.h"

#include <cstring>
#include <string>

#include "cpu/parallel.h"

namespace llm_kernels {
namespace {

constexpr std::int64_t kMinElementsPerThread = 32768;

float widen(float value) { return value; }
float widen(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}
void narrow(float value, float* to) { *to = value; }
void narrow(float value, std::uint16_t* to) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  *to = static_cast<std::uint16_t>(value == value ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : 0x7fc0u);
}

template <class T>
void copy_head(const T* from, T* to, std::int64_t size) {
  std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(T));
}

template <class From, class To>
void copy_head(const From* from, To* to, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) narrow(widen(from[i]), to + i);
}

template <class From, class To>
void write_token(const WriteKvArgs& args, const KvSource& source, const KvDestination& cache, std::int64_t token,
                 std::int64_t slot) {
  const From* from = static_cast<const From*>(source.data) + token * source.stride_token;
  To* to = static_cast<To*>(cache.data) + slot / args.block_size * cache.stride_block +
           slot % args.block_size * cache.stride_token;
  for (std::int64_t head = 0; head < args.num_kv_heads; ++head) {
    copy_head(from + head * source.stride_head, to + head * cache.stride_head, source.size);
  }
}

template <class From, class To>
void write_tokens(const WriteKvArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t slot = args.slot_mapping[token];
    if (slot < 0) continue;
    write_token<From, To>(args, args.key, args.key_cache, token, slot);
    if (args.value.size > 0) write_token<From, To>(args, args.value, args.value_cache, token, slot);
  }
}

using WriteTokens = void (*)(const WriteKvArgs&, std::int64_t, std::int64_t);

WriteTokens writer_for(DType from, DType to) {
  if (from == DType::kFloat32) {
    return to == DType::kFloat32 ? write_tokens<float, float> : write_tokens<float, std::uint16_t>;
  }
  return to == DType::kFloat32 ? write_tokens<std::uint16_t, float> : write_tokens<std::uint16_t, std::uint16_t>;
}

}  // namespace

void write_kv(const WriteKvArgs& args) {
  const std::int64_t num_slots = args.num_blocks * args.block_size;
  for (std::int64_t token = 0; token < args.num_tokens; ++token) {
    const std::int64_t slot = args.slot_mapping[token];
    if (slot < -1 || slot >= num_slots) {
      throw ArgumentError("slot_mapping", "slot " + std::to_string(slot) + " of token " + std::to_string(token) +
                                              " is outside [-1, " + std::to_string(num_slots) + ")");
    }
  }
  const WriteTokens write = writer_for(args.source_dtype, args.cache_dtype);
  const std::int64_t per_token = args.num_kv_heads * (args.key.size + args.value.size);
  parallel_shares(args.num_tokens, kMinElementsPerThread / (per_token > 0 ? per_token : 1) + 1, args.num_threads,
                  [&](std::int64_t begin, std::int64_t end) { write(args, begin, end); });
}

}  // namespace llm_kernels
