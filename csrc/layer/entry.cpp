// The collective functions that programs call, and the list of all functions.
#include <cstring>
#include <vector>

#include "entry.h"
#include "hook.h"
#include "recorder.h"
#include "start.h"

using namespace compcoll::layer;

namespace compcoll {
namespace layer {

std::vector<Function>& functions() {
  static auto all = new std::vector<Function>;
  return *all;
}

}  // namespace layer
}  // namespace compcoll

// The layer's function with this name, for csrc/preload/preload.cpp. `behind` finds the function that it
// calls next.
extern "C" __attribute__((visibility("default"))) void* compcoll_preloaded(void* (*behind)(const char*),
                                                                           bool (*is_own)(const void*),
                                                                           const char* name) {
  if (!NextFunction::preloaded) {
    NextFunction::preloaded = true, NextFunction::behind = behind, NextFunction::is_preloads = is_own;
    hook_fortran();
  }
  for (const Function& function : functions())
    if (!strcmp(function.name, name)) return function.function;
  return nullptr;
}

namespace {

// Enters the layer unless the call is small or its communicator is not marked; false if MPI carries it out.
COMPCOLL_INLINE bool enter_unless_small(Name name, Form form, bool large_count, const Word* words, int n,
                                        NextFunction& next, const void* caller, int* error) {
  Comm* comm = look_up(words[operations[name].comm]);
  uint64_t message_nbytes = 0;
  if (!comm || (name >= n_accelerated ? !looks_at_all && !recorder.on()
                                      : is_small(name, form, words, large_count, *comm, &message_nbytes)))
    return false;
  if (!is_ours()) return false;
  *error = enter_collective({name, form, large_count, words, n, *comm, next, caller}, message_nbytes);
  return true;
}

}  // namespace

// Defines a function that MPI may lack.
#define C_TAKES(symbol, name, form, large_count, parameters, arguments)                                     \
  C_FUNCTION(symbol, parameters) {                                                                          \
    const Word words[] = {arguments};                                                                       \
    constexpr int n = sizeof words / sizeof *words;                                                         \
    int error;                                                                                              \
    if (enter_unless_small(name, form, large_count, words, n, next_##symbol, CALLER, &error)) return error; \
    return next_##symbol.exists() ? next_##symbol(arguments) : unavailable;                                 \
  }

// Defines the three forms of a collective. A persistent one has an `info` before the request.
#define C_FORMS(n, name, method, suffix, large_count)                                                   \
  C_TAKES(name##suffix, name, blocking, large_count, (C_##n), A_##n)                                    \
  C_TAKES(method##suffix, name, nonblocking, large_count, (C_##n, Word request), WORDS(A_##n, request)) \
  C_TAKES(name##_init##suffix, name, persistent, large_count, (C_##n, Word info, Word request),         \
          WORDS(A_##n, info, request))
#define WORDS(...) __VA_ARGS__

#define COLLECTIVE(n, name, method, ...) C_FORMS(n, name, method, , false)
#define LARGE_COLLECTIVE(n, name, method, ...) C_FORMS(n, name, method, _c, true)

ACCELERATED(COLLECTIVE)
ACCELERATED(LARGE_COLLECTIVE)
OTHERS(COLLECTIVE)
OTHERS(LARGE_COLLECTIVE)
