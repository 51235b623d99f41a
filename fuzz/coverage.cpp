// Coverage for libFuzzer from objects of g++, which is what the library is built with: every edge calls
// __sanitizer_cov_trace_pc, which libFuzzer has only to say that it will not count it. The linker's --wrap
// brings the calls here, and libFuzzer watches any counters in this section.
#include <cstdint>

static constexpr uintptr_t size = 1 << 15;
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t counters[size];

extern "C" void __wrap___sanitizer_cov_trace_pc() {
  const auto pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& counter = counters[(pc ^ pc >> 15) % size];
  counter += counter != 255;
}
