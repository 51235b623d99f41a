// The names that programs call: those of C and, for an Open MPI, whose Fortran calls no function of C by its
// name, those of Fortran.
#include "names.h"

#include <vector>

using namespace compcoll::preload;

namespace {

Own type_f2c("PMPI_Type_f2c"), op_f2c("PMPI_Op_f2c"), comm_f2c("PMPI_Comm_f2c"), comm_size("PMPI_Comm_size");

Word number(void* address) { return Word(int64_t(*static_cast<int*>(address))); }

Word handle(Own& convert, const void* address) { return handle_at(Convention::fortran, convert, address); }

Word converted(char kind, void* address) {
  switch (kind) {
    case 'b': return buffer_of_fortran(address);
    case 'n': return number(address);
    case 't': return handle(type_f2c, address);
    case 'o': return handle(op_f2c, address);
    case 'c': return handle(comm_f2c, address);
  }
  return reinterpret_cast<Word>(address);
}

// A call from C, with the address of a request behind its arguments where it is not a blocking one.
bool taken(Name name, Form form, bool wide, const Word* words, void* request, const void* caller,
           int* error) {
  Word handle = 0;
  if (!is_ours() || !offer(name, form, wide, words, &handle, caller, error)) return false;
  if (request && !*error) give_request(Convention::c, handle, request);
  return true;
}

// A call from Fortran; `request` and `error` are addresses that it gave, and the latter may be left out.
bool taken(Name name, Form form, void* const* given, void* request, const void* caller, int* error) {
  if (!is_ours() || !library().own_fortran()) return false;
  Word words[10], made = 0;
  std::vector<Word> types[10];
  const char* kinds = operations[name].kinds;
  for (int i = 0; kinds[i]; i++) words[i] = converted(kinds[i], given[i]);
  for (int i = 0, n = 0; kinds[i]; i++) {
    if (kinds[i] != 'w') continue;
    comm_size.call(words[count_arguments(kinds) - 1], &n);
    auto numbers = static_cast<int*>(given[i]);
    // Of those for what is sent in place nothing is known.
    bool ignored = words[i - 3] == library().in_place;
    for (int p = 0; p < n; p++)
      types[i].push_back(ignored ? library().type_null : handle(type_f2c, numbers + p));
    words[i] = reinterpret_cast<Word>(types[i].data());
  }
  int result;
  if (!offer(name, form, false, words, &made, caller, &result)) return false;
  if (request && !result) give_request(Convention::fortran, made, request);
  if (error) *error = result;
  return true;
}

bool counts_fit(Name name, const Word* words) {
  for (const char* kind = operations[name].kinds; *kind; kind++, words++) {
    if (*kind == 'n' && int64_t(*words) != int32_t(*words)) return false;
  }
  return true;
}

}  // namespace

namespace compcoll {
namespace preload {

Word type_of_fortran(const void* number) { return handle(type_f2c, number); }
Word comm_of_fortran(const void* number) { return handle(comm_f2c, number); }

}  // namespace preload
}  // namespace compcoll

#define C_BLOCKING(n, name)                                                                    \
  EXPORT int MPI_##name(C_##n) {                                                               \
    static Next next("MPI_" #name);                                                            \
    const Word words[] = {A_##n};                                                              \
    int error;                                                                                 \
    return taken(name, blocking, false, words, nullptr, CALLER, &error) ? error : next(A_##n); \
  }

#define C_NONBLOCKING(n, name, method)                                                 \
  EXPORT int MPI_##method(C_##n, void* request) {                                      \
    static Next next("MPI_" #method);                                                  \
    const Word words[] = {A_##n};                                                      \
    int error;                                                                         \
    if (taken(name, nonblocking, false, words, request, CALLER, &error)) return error; \
    return next(A_##n, request);                                                       \
  }

// Functions that MPI 3 has not: an `info` comes before the request.
#define C_PERSISTENT(n, name, suffix, wide)                                          \
  EXPORT int MPI_##name##_init##suffix(C_##n, Word info, void* request) {            \
    static Next next("MPI_" #name "_init" #suffix);                                  \
    const Word words[] = {A_##n};                                                    \
    int error;                                                                       \
    if (!next.exists()) return unavailable;                                          \
    if (taken(name, persistent, wide, words, request, CALLER, &error)) return error; \
    return next(A_##n, info, request);                                               \
  }

// With counts of 64 bits; an older library has to do with smaller ones.
#define C_LARGE(n, name, method)                                                      \
  EXPORT int MPI_##name##_c(C_##n) {                                                  \
    static Next next("MPI_" #name "_c"), older("MPI_" #name);                         \
    const Word words[] = {A_##n};                                                     \
    int error;                                                                        \
    if (taken(name, blocking, true, words, nullptr, CALLER, &error)) return error;    \
    if (next.exists()) return next(A_##n);                                            \
    return counts_fit(name, words) ? older(A_##n) : unavailable;                      \
  }                                                                                   \
  EXPORT int MPI_##method##_c(C_##n, void* request) {                                 \
    static Next next("MPI_" #method "_c"), older("MPI_" #method);                     \
    const Word words[] = {A_##n};                                                     \
    int error;                                                                        \
    if (taken(name, nonblocking, true, words, request, CALLER, &error)) return error; \
    if (next.exists()) return next(A_##n, request);                                   \
    return counts_fit(name, words) ? older(A_##n, request) : unavailable;             \
  }                                                                                   \
  C_PERSISTENT(n, name, _c, true)

#define FORTRAN_BLOCKING(n, name, symbol)                                          \
  EXPORT void symbol(F_##n, int* error) {                                          \
    static Next next(#symbol);                                                     \
    void* const given[] = {A_##n};                                                 \
    if (!taken(name, blocking, given, nullptr, CALLER, error)) next(A_##n, error); \
  }

#define FORTRAN_NONBLOCKING(n, name, symbol)                                                   \
  EXPORT void symbol(F_##n, void* request, int* error) {                                       \
    static Next next(#symbol);                                                                 \
    void* const given[] = {A_##n};                                                             \
    if (!taken(name, nonblocking, given, request, CALLER, error)) next(A_##n, request, error); \
  }

#define COLLECTIVE(n, name, method, fortran)      \
  C_BLOCKING(n, name)                             \
  C_NONBLOCKING(n, name, method)                  \
  C_PERSISTENT(n, name, , false)                  \
  FORTRAN_BLOCKING(n, name, mpi_##fortran##_)     \
  FORTRAN_BLOCKING(n, name, mpi_##fortran##_f08_) \
  FORTRAN_NONBLOCKING(n, name, mpi_i##fortran##_) \
  FORTRAN_NONBLOCKING(n, name, mpi_i##fortran##_f08_)

// clang-format off
COLLECTIVE(7, Alltoall, Ialltoall, alltoall)
COLLECTIVE(9, Alltoallv, Ialltoallv, alltoallv)
COLLECTIVE(5, Bcast, Ibcast, bcast)
COLLECTIVE(6, Allreduce, Iallreduce, allreduce)
COLLECTIVE(7, Allgather, Iallgather, allgather)
COLLECTIVE(8, Allgatherv, Iallgatherv, allgatherv)
COLLECTIVE(7, Reduce, Ireduce, reduce)
COLLECTIVE(6, Reduce_scatter, Ireduce_scatter, reduce_scatter)
COLLECTIVE(6, Reduce_scatter_block, Ireduce_scatter_block, reduce_scatter_block)
COLLECTIVE(8, Gather, Igather, gather)
COLLECTIVE(9, Gatherv, Igatherv, gatherv)
COLLECTIVE(8, Scatter, Iscatter, scatter)
COLLECTIVE(9, Scatterv, Iscatterv, scatterv)
COLLECTIVE(9, Alltoallw, Ialltoallw, alltoallw)
C_LARGE(7, Alltoall, Ialltoall)
C_LARGE(5, Bcast, Ibcast)
C_LARGE(6, Allreduce, Iallreduce)
C_LARGE(7, Allgather, Iallgather)
C_LARGE(7, Reduce, Ireduce)
C_LARGE(6, Reduce_scatter_block, Ireduce_scatter_block)
C_LARGE(8, Gather, Igather)
C_LARGE(8, Scatter, Iscatter)
// clang-format on

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
  EXPORT void symbol(F_##n, void* made, int* error) {                                       \
    static Next next(#symbol);                                                              \
    const bool own = library().own_fortran();                                               \
    const Word parent = own ? handle(comm_f2c, a) : 0; /* the new one may take its place */ \
    int result = 0;                                                                         \
    next(A_##n, made, &result);                                                             \
    if (own && !result) result = made_of(parent, handle(comm_f2c, made), is_duplicate);     \
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
  else release(in_fortran ? handle(comm_f2c, comm) : *static_cast<Word*>(comm));
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

#define FORTRAN_INIT(symbol)                                \
  EXPORT void symbol(int* error) {                          \
    static Next next(#symbol);                              \
    if (!library().own_fortran()) return void(next(error)); \
    int result = init(nullptr, nullptr, 0, nullptr);        \
    if (error) *error = result;                             \
  }

#define FORTRAN_INIT_THREAD(symbol)                                             \
  EXPORT void symbol(int* required, int* provided, int* error) {                \
    static Next next(#symbol);                                                  \
    if (!library().own_fortran()) return void(next(required, provided, error)); \
    int result = init(nullptr, nullptr, *required, provided);                   \
    if (error) *error = result;                                                 \
  }

#define FORTRAN_QUERY_THREAD(symbol)                                  \
  EXPORT void symbol(int* provided, int* error) {                     \
    static Next next(#symbol);                                        \
    if (!library().own_fortran()) return void(next(provided, error)); \
    int result = MPI_Query_thread(provided);                          \
    if (error) *error = result;                                       \
  }

#define FORTRAN_FINALIZE(symbol)                            \
  EXPORT void symbol(int* error) {                          \
    static Next next(#symbol);                              \
    if (!library().own_fortran()) return void(next(error)); \
    int result = finalize();                                \
    if (error) *error = result;                             \
  }

FORTRAN_INIT(mpi_init_)
FORTRAN_INIT(mpi_init_f08_)
FORTRAN_INIT_THREAD(mpi_init_thread_)
FORTRAN_INIT_THREAD(mpi_init_thread_f08_)
FORTRAN_QUERY_THREAD(mpi_query_thread_)
FORTRAN_QUERY_THREAD(mpi_query_thread_f08_)
FORTRAN_FINALIZE(mpi_finalize_)
FORTRAN_FINALIZE(mpi_finalize_f08_)

// -- other calls that wait for ranks, to give up the lock of a Python program's interpreter meanwhile

#define C_WAITS(n, name)            \
  EXPORT int MPI_##name(C_##n) {    \
    static Next next("MPI_" #name); \
    return next(A_##n);             \
  }

// clang-format off
C_WAITS(1, Barrier)
C_WAITS(6, Scan)
C_WAITS(6, Exscan)
C_WAITS(6, Rsend)
C_WAITS(7, Neighbor_allgather)
C_WAITS(8, Neighbor_allgatherv)
C_WAITS(7, Neighbor_alltoall)
C_WAITS(9, Neighbor_alltoallv)
C_WAITS(9, Neighbor_alltoallw)
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
