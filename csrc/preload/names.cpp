// The names that programs call: those of C and, for an Open MPI, whose Fortran calls no function of C by its
// name, those of Fortran.
#include "names.h"

#include <vector>

using namespace compcoll::preload;

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

// A call from C, with the address of a request behind its arguments where it is not a blocking one.
bool taken(Name name, Form form, bool wide, const Word* words, void* request, const void* caller,
           int* error) {
  Word handle = 0;
  if (!is_ours() || !offer(name, form, wide, words, &handle, caller, error)) return false;
  if (request && !*error) give_request(Convention::c, handle, request);
  return true;
}

// A call from Fortran, with addresses of all that it gave.
bool taken(Name name, Form form, const Word* given, void* request, const void* caller, int* error) {
  if (!is_ours() || !library().own_fortran()) return false;
  const Operation& op = operations[name];
  Word words[10], made = 0;
  std::vector<Word> types[10];
  for (int i = 0; i <= op.comm; i++) words[i] = converted(op.kinds[i], given[i]);
  for (int i = 0, n = 0; i <= op.comm; i++) {
    if (op.kinds[i] != 'w') continue;
    comm_size.call(words[op.comm], &n);
    // Of those for what is sent in place nothing is known.
    bool ignored = words[i - 3] == library().in_place;
    for (int p = 0; p < n; p++)
      types[i].push_back(ignored ? library().type_null : handle(type_f2c, given[i] + p * sizeof(int)));
    words[i] = reinterpret_cast<Word>(types[i].data());
  }
  if (!offer(name, form, false, words, &made, caller, error)) return false;
  if (request && !*error) give_request(Convention::fortran, made, request);
  return true;
}

}  // namespace

namespace compcoll {
namespace preload {

Word type_of_fortran(const void* number) { return handle(type_f2c, reinterpret_cast<Word>(number)); }
Word comm_of_fortran(const void* number) { return handle(comm_f2c, reinterpret_cast<Word>(number)); }

bool counts_fit(const char* kinds, const Word* words) {
  for (; *kinds; kinds++, words++) {
    if ((*kinds == 'n' || *kinds == 'N') && int64_t(*words) != int32_t(*words)) return false;
  }
  return true;
}

}  // namespace preload
}  // namespace compcoll

// The three forms of a collective; of a persistent one, an `info` comes before the request.
#define C_FORMS(n, name, method, suffix, kinds, wide)                                                   \
  C_FUNCTION(n, MPI_##name##suffix, MPI_##name, kinds, (C_##n), (A_##n),                                \
             taken(name, blocking, wide, words, nullptr, CALLER, &error))                               \
  C_FUNCTION(n, MPI_##method##suffix, MPI_##method, kinds, (C_##n, void* request), (A_##n, request),    \
             taken(name, nonblocking, wide, words, request, CALLER, &error))                            \
  C_FUNCTION(n, MPI_##name##_init##suffix, MPI_##name##_init, kinds, (C_##n, Word info, void* request), \
             (A_##n, info, request), taken(name, persistent, wide, words, request, CALLER, &error))

#define FORTRAN_FORMS(n, name, stem, suffix)                                                            \
  FORTRAN_FUNCTION(n, mpi_##stem##suffix, (C_##n, int* error), (A_##n, error),                          \
                   taken(name, blocking, words, nullptr, CALLER, &result))                              \
  FORTRAN_FUNCTION(n, mpi_i##stem##suffix, (C_##n, void* request, int* error), (A_##n, request, error), \
                   taken(name, nonblocking, words, request, CALLER, &result))

#define COLLECTIVE(n, name, method, fortran, kinds, ...) \
  C_FORMS(n, name, method, , kinds, false)               \
  FORTRAN_FORMS(n, name, fortran, _)                     \
  FORTRAN_FORMS(n, name, fortran, _f08_)
#define LARGE_COLLECTIVE(n, name, method, fortran, kinds, ...) C_FORMS(n, name, method, _c, kinds, true)

ACCELERATED(COLLECTIVE)
LARGE(LARGE_COLLECTIVE)

// -- new communicators have what their calls need from the beginning: nonblocking ones cannot make it

namespace {

// A communicator was made of another one; MPI's error code.
int made_of(Word parent, Word made, bool is_duplicate) {
  if (!is_ours() || !world_is_attached() || made == library().comm_null) return 0;
  return attach_new(made, find_parent(parent), is_duplicate);
}

}  // namespace

#define C_MAKES(n, name, is_duplicate)                                                         \
  EXPORT int MPI_##name(C_##n, void* made) {                                                   \
    static Next next("MPI_" #name);                                                            \
    int error = next(A_##n, made);                                                             \
    return error ? error : made_of(a, handle_at(Convention::c, comm_f2c, made), is_duplicate); \
  }

#define FORTRAN_MAKES(n, symbol, is_duplicate)                                              \
  EXPORT void symbol(C_##n, void* made, int* error) {                                       \
    static Next next(#symbol);                                                              \
    const bool own = library().own_fortran();                                               \
    const Word parent = own ? handle(comm_f2c, a) : 0; /* the new one may take its place */ \
    int result = 0;                                                                         \
    next(A_##n, made, &result);                                                             \
    if (own && !result) result = made_of(parent, comm_of_fortran(made), is_duplicate);      \
    if (error) *error = result;                                                             \
  }

#define MAKES(n, name, fortran, is_duplicate)      \
  C_MAKES(n, name, is_duplicate)                   \
  FORTRAN_MAKES(n, mpi_##fortran##_, is_duplicate) \
  FORTRAN_MAKES(n, mpi_##fortran##_f08_, is_duplicate)

// clang-format off
MAKES(1, Comm_dup, comm_dup, true)
MAKES(2, Comm_dup_with_info, comm_dup_with_info, true)
MAKES(3, Comm_split, comm_split, false)
MAKES(4, Comm_split_type, comm_split_type, false)
MAKES(2, Comm_create, comm_create, false)
MAKES(3, Comm_create_group, comm_create_group, false)
MAKES(5, Cart_create, cart_create, false)
MAKES(2, Cart_sub, cart_sub, false)
MAKES(2, Intercomm_merge, intercomm_merge, false)
// clang-format on

namespace {

// MPICH's bindings for mpi_f08 call PMPI as well; its handles are those of C.
void before_freeing(void* comm, bool in_fortran) {
  Abi abi = library().abi;
  if (!is_ours() || !dispatch_if_loaded() || (in_fortran && abi == Abi::standard)) return;
  if (abi == Abi::mpich) release(*static_cast<uint32_t*>(comm));
  else release(in_fortran ? comm_of_fortran(comm) : *static_cast<Word*>(comm));
}

}  // namespace

#define C_FREES(name)                 \
  EXPORT int MPI_##name(void* comm) { \
    static Next next("MPI_" #name);   \
    before_freeing(comm, false);      \
    return next(comm);                \
  }

#define FORTRAN_FREES(symbol)                  \
  EXPORT void symbol(void* comm, int* error) { \
    static Next next(#symbol);                 \
    before_freeing(comm, true);                \
    next(comm, error);                         \
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

// Begins with threads, whatever the program asked for, and attaches COMM_WORLD.
int init(int* argc, char*** argv, int required, int* provided) {
  static Next next("MPI_Init_thread");
  int given = 0;
  {
    Inside within;
    int wanted = is_enabled() ? library().thread_multiple : required;
    if (int error = next(argc, argv, wanted, &given)) return error;
    asked = required < given ? required : given;
    if (provided) *provided = asked;
  }
  // Where Python runs already, it may be in the midst of importing mpi4py, which calls this.
  if (inside || !is_enabled() || is_python() || !dispatch()) return 0;
  return attach_world();
}

int finalize() {
  static Next next("MPI_Finalize");
  int error;
  {
    Inside within;
    error = next();
  }
  if (!inside) end_interpreter();
  return error;
}

}  // namespace

EXPORT int MPI_Init(int* argc, char*** argv) { return init(argc, argv, 0, nullptr); }

EXPORT int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  return init(argc, argv, required, provided);
}

EXPORT int MPI_Query_thread(int* provided) {
  static Next next("MPI_Query_thread");
  int error = next(provided);
  if (!error && asked >= 0 && !inside) *provided = asked;
  return error;
}

EXPORT int MPI_Finalize() { return finalize(); }

#define FORTRAN_BOTH(stem, ...) FORTRAN_OWN(stem, __VA_ARGS__) FORTRAN_OWN(stem##f08_, __VA_ARGS__)

FORTRAN_BOTH(mpi_init_, (int* error), (error), init(nullptr, nullptr, 0, nullptr))
FORTRAN_BOTH(mpi_init_thread_, (int* required, int* provided, int* error), (required, provided, error),
             init(nullptr, nullptr, *required, provided))
FORTRAN_BOTH(mpi_query_thread_, (int* provided, int* error), (provided, error), MPI_Query_thread(provided))
FORTRAN_BOTH(mpi_finalize_, (int* error), (error), finalize())

// -- other calls that wait for ranks, to give up the lock of a Python program's interpreter meanwhile

#define C_WAITS(n, name, ...)       \
  EXPORT int MPI_##name(C_##n) {    \
    static Next next("MPI_" #name); \
    return next(A_##n);             \
  }

// clang-format off
OTHERS(C_WAITS)
C_WAITS(6, Rsend)
C_WAITS(6, Intercomm_create)
C_WAITS(6, Graph_create)
C_WAITS(9, Dist_graph_create)
C_WAITS(10, Dist_graph_create_adjacent)
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
