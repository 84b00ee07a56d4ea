// Types every op shares: element types, the error of a bad argument, the choice of instruction set.
// Knows no framework and no op.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace llm_kernels {

enum class DType : std::int32_t { kFloat32, kBFloat16 };

inline std::int64_t size_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// An argument has a wrong shape, type or value. what() reads "field: message".
class ArgumentError : public std::invalid_argument {
 public:
  ArgumentError(const std::string& field, const std::string& message)
      : std::invalid_argument(field + ": " + message) {}
};

// The function of a gated layer's gate.
enum class GateKind : std::int32_t { kSilu, kGelu, kGeluTanh };

// Each has all that those before it have. kAmx: matrix tiles of bfloat16 and int8 beside AVX-512.
enum class Isa : std::int32_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };

// The best instruction set this processor runs, unless a lower one was forced.
Isa current_isa();

// Uses `isa` from now on; for tests. Throws ArgumentError where the processor or the build lacks it.
void force_isa(Isa isa);

const char* isa_name(Isa isa);

}  // namespace llm_kernels
