// Sums of 16-bit floats, for which MPI has no operation.
#include <algorithm>

#include "abi.h"
#include "cpu/table.h"
#include "types.h"

namespace compcoll {
namespace layer {
namespace {

// MPI's callback, which rounds each sum once.
template <uint32_t element>
void add_halves(const void* theirs, void* ours, const int* n, const void*) {
  const Level& level = **levels();
  constexpr uint64_t most = 1024;
  float sums[most];
  for (uint64_t first = 0; first < uint64_t(*n); first += most) {
    const uint64_t some = std::min(most, uint64_t(*n) - first);
    char* mine = static_cast<char*>(ours) + 2 * first;
    level.convert(element, FLOAT32, mine, sums, some);
    level.accumulate(element, FLOAT32, static_cast<const char*>(theirs) + 2 * first, sums, some);
    level.convert(FLOAT32, element, sums, mine, some);
  }
}

}  // namespace

Word sum_of_halves(uint32_t element) {
  static MpiFunction op_create("PMPI_Op_create");
  Word made = 0;
  const auto add = element == FLOAT16 ? &add_halves<FLOAT16> : &add_halves<BFLOAT16>;
  return op_create.call(add, 1, &made) ? 0 : library().handle_of(made);
}

}  // namespace layer
}  // namespace compcoll
