// The names that programs call: those of C and, for an Open MPI, whose Fortran calls no function of C by its
// name, those of Fortran.
#include "interpreter.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

// N arguments: as parameters of C, by name, and as parameters of Fortran, where all are addresses.
#define C_1 Word a
#define C_2 C_1, Word b
#define C_3 C_2, Word c
#define C_4 C_3, Word d
#define C_5 C_4, Word e
#define C_6 C_5, Word f
#define C_7 C_6, Word g
#define C_8 C_7, Word h
#define C_9 C_8, Word i
#define A_1 a
#define A_2 A_1, b
#define A_3 A_2, c
#define A_4 A_3, d
#define A_5 A_4, e
#define A_6 A_5, f
#define A_7 A_6, g
#define A_8 A_7, h
#define A_9 A_8, i
#define F_1 void* a
#define F_2 F_1, void* b
#define F_3 F_2, void* c
#define F_4 F_3, void* d
#define F_5 F_4, void* e
#define F_6 F_5, void* f
#define F_7 F_6, void* g
#define F_8 F_7, void* h
#define F_9 F_8, void* i

using namespace compcoll::preload;

namespace {

Own type_f2c("PMPI_Type_f2c"), op_f2c("PMPI_Op_f2c"), comm_f2c("PMPI_Comm_f2c"),
    request_c2f("PMPI_Request_c2f");

bool is_ours() { return !inside && is_enabled(); }

Word number(void* address) { return Word(int64_t(*static_cast<int*>(address))); }

Word handle(Own& convert, void* address) {
  int number = *static_cast<int*>(address);
  return library().handle_of(convert.call<Word>(number));
}

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

// The C handle of a request goes where the program has room for one, which is as wide as a handle.
void give(Word* request, Word handle) {
  if (library().abi == Abi::mpich) *reinterpret_cast<uint32_t*>(request) = uint32_t(handle);
  else *request = handle;
}

// A call from C, with the address of a request behind its arguments where it is a nonblocking one.
bool taken(Name name, const Word* words, Word* request, const void* caller, int* error) {
  Word handle = 0;
  if (!is_ours() || !offer(name, words, request ? &handle : nullptr, caller, error)) return false;
  if (request && !*error) give(request, handle);
  return true;
}

// A call from Fortran; `request` and `error` are addresses that it gave, and the latter may be left out.
bool taken(Name name, void* const* given, void* request, const void* caller, int* error) {
  if (!is_ours() || !library().own_fortran()) return false;
  Word words[10], made = 0;
  const char* kinds = operations[name].kinds;
  for (int i = 0; kinds[i]; i++) words[i] = converted(kinds[i], given[i]);
  int result;
  if (!offer(name, words, request ? &made : nullptr, caller, &result)) return false;
  if (request && !result) *static_cast<int*>(request) = request_c2f.call(made);
  if (error) *error = result;
  return true;
}

}  // namespace

#define C_BLOCKING(n, name)                                                   \
  EXPORT int MPI_##name(C_##n) {                                              \
    static Next next("MPI_" #name);                                           \
    const Word words[] = {A_##n};                                             \
    int error;                                                                \
    return taken(name, words, nullptr, CALLER, &error) ? error : next(A_##n); \
  }

#define C_NONBLOCKING(n, name, method)                                                 \
  EXPORT int MPI_##method(C_##n, Word* request) {                                      \
    static Next next("MPI_" #method);                                                  \
    const Word words[] = {A_##n};                                                      \
    int error;                                                                         \
    return taken(name, words, request, CALLER, &error) ? error : next(A_##n, request); \
  }

#define FORTRAN_BLOCKING(n, name, symbol)                                \
  EXPORT void symbol(F_##n, int* error) {                                \
    static Next next(#symbol);                                           \
    void* const given[] = {A_##n};                                       \
    if (!taken(name, given, nullptr, CALLER, error)) next(A_##n, error); \
  }

#define FORTRAN_NONBLOCKING(n, name, symbol)                                      \
  EXPORT void symbol(F_##n, void* request, int* error) {                          \
    static Next next(#symbol);                                                    \
    void* const given[] = {A_##n};                                                \
    if (!taken(name, given, request, CALLER, error)) next(A_##n, request, error); \
  }

#define COLLECTIVE(n, name, method, fortran)      \
  C_BLOCKING(n, name)                             \
  C_NONBLOCKING(n, name, method)                  \
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
// clang-format on

// -- new communicators have what their calls need from the beginning: nonblocking ones cannot make it

namespace {

int made_in_c(int error, void* made) {
  if (error || !is_ours() || !dispatch_if_loaded()) return error;
  bool narrow = library().abi == Abi::mpich;
  Word comm = narrow ? *static_cast<uint32_t*>(made) : *static_cast<Word*>(made);
  return comm == library().comm_null ? error : attach_new(comm);
}

int made_in_fortran(int error, void* made) {
  if (error || !is_ours() || !library().own_fortran() || !dispatch_if_loaded()) return error;
  Word comm = handle(comm_f2c, made);
  return comm == library().comm_null ? error : attach_new(comm);
}

}  // namespace

#define C_MAKES(n, name)                       \
  EXPORT int MPI_##name(C_##n, void* made) {   \
    static Next next("MPI_" #name);            \
    return made_in_c(next(A_##n, made), made); \
  }

#define FORTRAN_MAKES(n, symbol)                      \
  EXPORT void symbol(F_##n, void* made, int* error) { \
    static Next next(#symbol);                        \
    int result = 0;                                   \
    next(A_##n, made, &result);                       \
    result = made_in_fortran(result, made);           \
    if (error) *error = result;                       \
  }

#define MAKES(n, name, fortran)      \
  C_MAKES(n, name)                   \
  FORTRAN_MAKES(n, mpi_##fortran##_) \
  FORTRAN_MAKES(n, mpi_##fortran##_f08_)

// clang-format off
MAKES(1, Comm_dup, comm_dup)
MAKES(2, Comm_dup_with_info, comm_dup_with_info)
MAKES(3, Comm_split, comm_split)
MAKES(4, Comm_split_type, comm_split_type)
MAKES(2, Comm_create, comm_create)
MAKES(3, Comm_create_group, comm_create_group)
MAKES(5, Cart_create, cart_create)
MAKES(2, Cart_sub, cart_sub)
MAKES(2, Intercomm_merge, intercomm_merge)
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
  return attach_new(library().comm_world);
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
