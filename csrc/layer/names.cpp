// The functions that programs call: those of C and, for an Open MPI, whose Fortran calls no function of C by
// its name, those of Fortran.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "check.h"
#include "functions.h"
#include "hook.h"
#include "interpreter.h"
#include "record.h"
#include "requests.h"

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
  Next::preloaded = true, Next::behind = behind, Next::is_preloads = is_own;
  for (const Function& function : functions())
    if (!strcmp(function.name, name)) return function.function;
  return nullptr;
}

namespace {

Own type_f2c("PMPI_Type_f2c"), op_f2c("PMPI_Op_f2c"), comm_f2c("PMPI_Comm_f2c"), comm_size("PMPI_Comm_size");

Word handle(Own& convert, Word address) {
  return handle_at(Convention::fortran, convert, reinterpret_cast<const void*>(address));
}

Word converted(char kind, Word address) {
  switch (kind) {
    case 'b': return buffer_of_fortran(reinterpret_cast<void*>(address));
    case 'n':
    case 'r': return Word(int64_t(*reinterpret_cast<const int*>(address)));
    case 't': return handle(type_f2c, address);
    case 'o': return handle(op_f2c, address);
    case 'c': return handle(comm_f2c, address);
  }
  return address;
}

// Serves a call from C.
bool taken(Name name, Form form, bool wide, const Word* words, int n, Comm& comm, Next& next,
           const void* caller, int* error) {
  Word request = 0;
  void* const place = reinterpret_cast<void*>(words[n - 1]);  // of the request, where there is one
  Call call = {name, form, wide, words, n, comm, next, caller, &request};
  const bool records = form != persistent && is_recorded();
  Record record;
  if (records) record = begin_record(call);
  if (!serve(call, error)) {
    if (!records && !own_sum(call)) return false;
    *error = plain(call, words);
  } else if (form != blocking && !*error && request) {
    give_request(Convention::c, request, place);
  }
  if (records)
    end_record(call, std::move(record), *error, form == blocking ? 0 : request_at(Convention::c, place));
  return true;
}

bool taken_large(Name name, Form form, bool wide, const Word* words, int n, Comm& comm, Next& next,
                 const void* caller, int* error) {
  if (!is_ours()) return false;
  bool is_taken = true;
  *error = guarded(comm, [&] {
    int code = 0;
    is_taken = taken(name, form, wide, words, n, comm, next, caller, &code);
    return code;
  });
  return is_taken;
}

// Any call from C.
COMPCOLL_INLINE bool try_accelerate(Name name, Form form, bool wide, const Word* words, int n, Next& next,
                                    const void* caller, int* error) {
  const Operation& op = operations[name];
  Comm* comm = look_up(words[op.comm]);
  if (!comm) return false;
  if (name >= n_accelerated ? !looks_at_all && !recorder.on()
                            : !op.listed && is_small(name, words, wide, *comm))
    return false;
  return taken_large(name, form, wide, words, n, *comm, next, caller, error);
}

// Of a recorded call that is MPI's alone nobody here learns when it ends.
void keep_for_good(std::shared_ptr<void> one) {
  static std::mutex mutex;
  static auto& all = *new std::vector<std::shared_ptr<void>>;
  std::lock_guard<std::mutex> lock(mutex);
  all.push_back(std::move(one));
}

// Serves a call from Fortran, with addresses of all that it gave; what MPI does of it goes by the function of
// C.
bool taken(Name name, Form form, const Word* given, void* request, Comm* comm, Next& next, const void* caller,
           int* error) {
  const Operation& op = operations[name];
  Word words[11], made = 0, plain = 0;
  auto types = std::make_shared<std::array<std::vector<Word>, 10>>();
  for (int i = 0; i <= op.comm; i++) words[i] = converted(op.kinds[i], given[i]);
  for (int i = 0; i <= op.comm; i++) {
    if (op.kinds[i] != 'w') continue;
    // Of those for what is sent in place nothing is known.
    const bool ignored = words[i - 3] == library().in_place;
    std::vector<Word>& all = (*types)[size_t(i)];
    for (int p = 0; p < comm->size; p++)
      all.push_back(ignored ? library().type_null : handle(type_f2c, given[i] + Word(p) * sizeof(int)));
    words[i] = reinterpret_cast<Word>(all.data());
  }
  words[op.comm + 1] = reinterpret_cast<Word>(&plain);
  const int n = op.comm + 1 + (form == nonblocking);
  Call call = {name, form, false, words, n, *comm, next, caller, &made};
  if (std::any_of(types->begin(), types->end(), [](const auto& all) { return !all.empty(); }))
    call.keep = types;
  const bool records = is_recorded();
  Record record;
  if (records) record = begin_record(call);
  if (!serve(call, error)) {
    if (!records) return false;
    if (form == nonblocking) keep_for_good(types);
    *error = compcoll::layer::plain(call, words);
  }
  const Word handle = made ? made : library().handle_of(plain);
  if (request && !*error) give_request(Convention::fortran, handle, request);
  if (records) end_record(call, std::move(record), *error, request ? handle : 0);
  return true;
}

bool try_accelerate(Name name, Form form, const Word* given, void* request, Next& next, const void* caller,
                    int* error) {
  if (!is_ours() || !library().own_fortran()) return false;
  Comm* comm = find(converted('c', given[operations[name].comm]));
  if (!comm) return false;
  bool is_taken = true;
  *error = guarded(*comm, [&] {
    int code = 0;
    is_taken = taken(name, form, given, request, comm, next, caller, &code);
    return code;
  });
  return is_taken;
}

}  // namespace

namespace compcoll {
namespace layer {

Word type_of_fortran(const void* number) { return handle(type_f2c, reinterpret_cast<Word>(number)); }
Word comm_of_fortran(const void* number) { return handle(comm_f2c, reinterpret_cast<Word>(number)); }

}  // namespace layer
}  // namespace compcoll

// A function of C, which MPI may lack.
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

#define FORTRAN_TAKES(n, symbol, name, form, plain, parameters, arguments, request)   \
  FORTRAN_FUNCTION(symbol, parameters) {                                              \
    const Word words[] = {A_##n};                                                     \
    int result;                                                                       \
    if (!try_accelerate(name, form, words, request, next_##plain, CALLER, &result)) { \
      next_##symbol arguments;                                                        \
      return;                                                                         \
    }                                                                                 \
    if (error) *error = result;                                                       \
  }

#define FORTRAN_FORMS(n, name, method, stem, suffix)                                                       \
  FORTRAN_TAKES(n, mpi_##stem##suffix, name, blocking, name, (C_##n, int* error), (A_##n, error), nullptr) \
  FORTRAN_TAKES(n, mpi_i##stem##suffix, name, nonblocking, method, (C_##n, void* request, int* error),     \
                (A_##n, request, error), request)

#define COLLECTIVE(n, name, method, fortran, ...) \
  C_FORMS(n, name, method, , false)               \
  FORTRAN_FORMS(n, name, method, fortran, _)      \
  FORTRAN_FORMS(n, name, method, fortran, _f08_)
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
  return comm ? guarded(comm->handle, [&] { return inherit(*comm, made, same_ranks); }) : 0;
}

// True if a communicator that is about to be freed stays, since others use it. False after an exception: MPI
// frees it then.
bool stays(void* comm, Convention convention) {
  if (!is_ours() || library().status_nbytes == 0) return false;
  if (convention == Convention::fortran && library().abi == Abi::standard) return false;
  const bool fortran = convention == Convention::fortran && library().own_fortran();
  try {
    return before_free(fortran ? comm_of_fortran(comm) : library().handle_at(comm));
  } catch (...) { return false; }
}

Own comm_c2f("PMPI_Comm_c2f");

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

#define FORTRAN_MAKES(n, symbol, same_ranks)                                                \
  FORTRAN_FUNCTION(symbol, (C_##n, void* made, int* error)) {                               \
    const bool own = library().own_fortran();                                               \
    const Word parent = own ? handle(comm_f2c, a) : 0; /* the new one may take its place */ \
    int result = 0;                                                                         \
    next_##symbol(A_##n, made, &result);                                                    \
    if (own && !result) result = made_of(parent, comm_of_fortran(made), same_ranks);        \
    if (error) *error = result;                                                             \
  }

#define MAKES(n, name, fortran, same_ranks)      \
  C_MAKES(n, name, same_ranks)                   \
  FORTRAN_MAKES(n, mpi_##fortran##_, same_ranks) \
  FORTRAN_MAKES(n, mpi_##fortran##_f08_, same_ranks)

// clang-format off
MAKES(1, Comm_dup, comm_dup, true)
MAKES(2, Comm_dup_with_info, comm_dup_with_info, true)
MAKES(3, Comm_split, comm_split, false)
MAKES(4, Comm_split_type, comm_split_type, false)
MAKES(2, Comm_create, comm_create, false)
MAKES(3, Comm_create_group, comm_create_group, false)
MAKES(5, Cart_create, cart_create, false)
MAKES(2, Cart_sub, cart_sub, false)
MAKES(5, Graph_create, graph_create, false)
MAKES(8, Dist_graph_create, dist_graph_create, false)
MAKES(9, Dist_graph_create_adjacent, dist_graph_create_adjacent, false)
// clang-format on

#define C_FREES(name)                                                            \
  C_FUNCTION(name, (void* comm)) {                                               \
    const Word handle = is_ours() ? library().handle_at(comm) : 0;               \
    const bool kept = stays(comm, Convention::c);                                \
    /* Objects of the communicator are null by now, and this may be one. */      \
    if (handle) library().put_handle(kept ? library().comm_null : handle, comm); \
    return kept ? 0 : next_##name(comm);                                         \
  }

#define FORTRAN_FREES(symbol)                                              \
  FORTRAN_FUNCTION(symbol, (void* comm, int* error)) {                     \
    if (!stays(comm, Convention::fortran)) {                               \
      next_##symbol(comm, error);                                          \
      return;                                                              \
    }                                                                      \
    give_handle(Convention::fortran, library().comm_null, comm_c2f, comm); \
    if (error) *error = 0;                                                 \
  }

C_FREES(Comm_free)
C_FREES(Comm_disconnect)
FORTRAN_FREES(mpi_comm_free_)
FORTRAN_FREES(mpi_comm_free_f08_)
FORTRAN_FREES(mpi_comm_disconnect_)
FORTRAN_FREES(mpi_comm_disconnect_f08_)

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

// Those of Fortran that Open MPI has of its own, in which other libraries call their own.
#define FORTRAN_OWN(symbol, parameters, arguments, own) \
  FORTRAN_FUNCTION(symbol, parameters) {                \
    if (!library().own_fortran()) {                     \
      next_##symbol arguments;                          \
      return;                                           \
    }                                                   \
    int result = own;                                   \
    if (error) *error = result;                         \
  }
#define FORTRAN_BOTH(stem, ...) FORTRAN_OWN(stem, __VA_ARGS__) FORTRAN_OWN(stem##f08_, __VA_ARGS__)

FORTRAN_BOTH(mpi_init_, (int* error), (error), layer_MPI_Init(nullptr, nullptr))
FORTRAN_BOTH(mpi_init_thread_, (int* required, int* provided, int* error), (required, provided, error),
             layer_MPI_Init_thread(nullptr, nullptr, *required, provided))
FORTRAN_BOTH(mpi_query_thread_, (int* provided, int* error), (provided, error),
             layer_MPI_Query_thread(provided))
FORTRAN_BOTH(mpi_finalize_, (int* error), (error), layer_MPI_Finalize())

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
