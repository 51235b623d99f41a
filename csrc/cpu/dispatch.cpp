// The levels that this processor can run, best first.
#include "table.h"

namespace compcoll {
namespace baseline { extern const Level level; }
#ifdef CC_X86
namespace avx2 { extern const Level level; }
namespace avx512 { extern const Level level; }

static bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
}

// Zen 1 and Zen 2 take hundreds of cycles for one pdep or pext. Checked here and not in a level's own code,
// which may contain instructions that this processor lacks.
static bool has_slow_bmi2() {
  __builtin_cpu_init();
  return __builtin_cpu_is("amdfam17h");
}
extern const bool slow_bmi2;
const bool slow_bmi2 = has_slow_bmi2();
#endif

const Level* const* levels() {
  static const Level* found[4] = {};
  if (!found[0]) {
    int n = 0;
#ifdef CC_X86
    __builtin_cpu_init();
    if (has_avx512()) found[n++] = &avx512::level;
    if (has_avx2()) found[n++] = &avx2::level;
#endif
    found[n++] = &baseline::level;
  }
  return found;
}
}  // namespace compcoll
