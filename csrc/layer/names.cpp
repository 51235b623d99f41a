// The functions that programs call, those of messages and waits apart.
#include <cstring>
#include <vector>

#include "check.h"
#include "functions.h"
#include "hook.h"
#include "interpreter.h"
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

// Of csrc/preload/preload.cpp: the layer's function of a name, behind which comes what that object finds.
extern "C" __attribute__((visibility("default"))) void* compcoll_preloaded(void* (*behind)(const char*),
                                                                           bool (*is_own)(const void*),
                                                                           const char* name) {
  if (!Next::preloaded) {
    Next::preloaded = true, Next::behind = behind, Next::is_preloads = is_own;
    hook_fortran();
  }
  for (const Function& function : functions())
    if (!strcmp(function.name, name)) return function.function;
  return nullptr;
}

namespace {

// Any call.
COMPCOLL_INLINE bool try_accelerate(Name name, Form form, bool wide, const Word* words, int n, Next& next,
                                    const void* caller, int* error) {
  Comm* comm = look_up(words[operations[name].comm]);
  uint64_t message_nbytes = 0;
  if (!comm || (name >= n_accelerated ? !looks_at_all && !recorder.on()
                                      : is_small(name, form, words, wide, *comm, &message_nbytes)))
    return false;
  if (!is_ours()) return false;
  *error = enter_collective({name, form, wide, words, n, *comm, next, caller}, message_nbytes);
  return true;
}

}  // namespace

// A function, which MPI may lack.
#define C_TAKES(symbol, name, form, wide, parameters, arguments)                                 \
  C_FUNCTION(symbol, parameters) {                                                               \
    const Word words[] = {arguments};                                                            \
    constexpr int n = sizeof words / sizeof *words;                                              \
    int error;                                                                                   \
    if (try_accelerate(name, form, wide, words, n, next_##symbol, CALLER, &error)) return error; \
    return next_##symbol.exists() ? next_##symbol(arguments) : unavailable;                      \
  }

// The three forms of a collective; of a persistent one, an `info` comes before the request.
#define C_FORMS(n, name, method, suffix, wide)                                                   \
  C_TAKES(name##suffix, name, blocking, wide, (C_##n), A_##n)                                    \
  C_TAKES(method##suffix, name, nonblocking, wide, (C_##n, Word request), WORDS(A_##n, request)) \
  C_TAKES(name##_init##suffix, name, persistent, wide, (C_##n, Word info, Word request),         \
          WORDS(A_##n, info, request))
#define WORDS(...) __VA_ARGS__

#define COLLECTIVE(n, name, method, ...) C_FORMS(n, name, method, , false)
#define LARGE_COLLECTIVE(n, name, method, ...) C_FORMS(n, name, method, _c, true)

ACCELERATED(COLLECTIVE)
ACCELERATED(LARGE_COLLECTIVE)
OTHERS(COLLECTIVE)
OTHERS(LARGE_COLLECTIVE)

// -- what is made of a marked communicator is marked; what MPI makes without these functions is not

namespace {

// A communicator was made of another one; MPI's error code.
int made_of(Word parent, Word made, bool same_ranks) {
  Comm* comm = is_ours() && made != library().comm_null ? find(parent) : nullptr;
  if (!comm) return 0;
  return guarded(comm->handle, [&] {
    if (Next::preloaded) hook_fortran();  // in a library that was loaded meanwhile
    return inherit(*comm, made, same_ranks);
  });
}

// True if a communicator that is about to be freed stays, since others use it. False after an exception: MPI
// frees it then.
bool stays(void* comm) {
  if (!is_ours() || library().status_nbytes == 0) return false;
  try {
    return before_free(library().handle_at(comm));
  } catch (...) { return false; }
}

}  // namespace

// mpi4py has the interpreter's lock where it duplicates a communicator for itself, for sums of objects; such
// a duplicate is plain.
#define C_MAKES(n, name, same_ranks)                                                    \
  C_FUNCTION(name, (C_##n, void* made)) {                                               \
    int error = check_named(a, #name);                                                  \
    if (error) return error;                                                            \
    bool hidden = false;                                                                \
    {                                                                                   \
      Unlocked unlocked;                                                                \
      hidden = same_ranks && unlocked.had_lock() && is_of_hooked(CALLER);               \
      error = next_##name(A_##n, made);                                                 \
    }                                                                                   \
    return error || hidden ? error : made_of(a, library().handle_at(made), same_ranks); \
  }

// clang-format off
C_MAKES(1, Comm_dup, true)
C_MAKES(2, Comm_dup_with_info, true)
C_MAKES(3, Comm_split, false)
C_MAKES(4, Comm_split_type, false)
C_MAKES(2, Comm_create, false)
C_MAKES(3, Comm_create_group, false)
C_MAKES(5, Cart_create, false)
C_MAKES(2, Cart_sub, false)
C_MAKES(5, Graph_create, false)
C_MAKES(8, Dist_graph_create, false)
C_MAKES(9, Dist_graph_create_adjacent, false)
// clang-format on

#define C_FREES(name)                                                            \
  C_FUNCTION(name, (void* comm)) {                                               \
    const Word handle = is_ours() ? library().handle_at(comm) : 0;               \
    const bool kept = stays(comm);                                               \
    /* Objects of the communicator are null by now, and this may be one. */      \
    if (handle) library().put_handle(kept ? library().comm_null : handle, comm); \
    return kept ? 0 : next_##name(comm);                                         \
  }

C_FREES(Comm_free)
C_FREES(Comm_disconnect)

// -- the beginning and the end

namespace {

int asked = -1;  // the level of threads that the program asked for, where it has another one
bool has_begun = false;  // for a program that may begin MPI itself

Own query_thread("PMPI_Query_thread");

}  // namespace

namespace compcoll {
namespace layer {

void begin_for_program(int level) {
  int given = 0;
  query_thread.call(&given);
  asked = level < given ? level : given;
  has_begun = true;
}

}  // namespace layer
}  // namespace compcoll

C_FUNCTION(Init_thread, (int* argc, char*** argv, int required, int* provided)) {
  int given = 0;
  if (has_begun) {
    begin_for_program(required);
    has_begun = false;
    if (provided) *provided = asked;
    return 0;
  }
  leave_environment();
  {
    ReentrancyGuard within;
    int wanted = is_enabled ? library().most_threads : required;
    if (int error = next_Init_thread(argc, argv, wanted, &given)) return error;
    asked = required < given ? required : given;
    if (provided) *provided = asked;
  }
  // Names that MPI lacks are there where the layer is preloaded, but mpi4py looks for them.
  if (Next::preloaded && is_python()) hook_caller(CALLER);
  // Where Python runs already, it may be in the midst of importing mpi4py, which calls this.
  return reentrant || !is_enabled || is_python() ? 0 : guarded(library().comm_world, begin_program);
}

C_FUNCTION(Init, (int* argc, char*** argv)) {
  (void)next_Init;
  return layer_MPI_Init_thread(argc, argv, 0, nullptr);
}

C_FUNCTION(Query_thread, (int* provided)) {
  int error = next_Query_thread(provided);
  if (!error && asked >= 0 && !reentrant) *provided = asked;
  return error;
}

C_FUNCTION(Finalize, ()) {
  if (!reentrant) end_layer();
  int error;
  {
    ReentrancyGuard within;
    error = next_Finalize();
  }
  if (!reentrant) end_interpreter();
  return error;
}

// -- other calls that wait for ranks, to give up the lock of a Python program's interpreter meanwhile

#define C_WAITS(n, name, ...) \
  C_FUNCTION(name, (C_##n)) { return next_##name(A_##n); }

// clang-format off
C_WAITS(6, Intercomm_create)
C_WAITS(3, Intercomm_merge)
C_WAITS(6, Win_create)
C_WAITS(6, Win_allocate)
C_WAITS(6, Win_allocate_shared)
C_WAITS(1, Win_free)
C_WAITS(2, Win_fence)
C_WAITS(3, Win_start)
C_WAITS(1, Win_complete)
C_WAITS(1, Win_wait)
C_WAITS(4, Win_lock)
C_WAITS(2, Win_unlock)
C_WAITS(2, Win_flush)
C_WAITS(1, Win_flush_all)
C_WAITS(1, Win_unlock_all)
// clang-format on
