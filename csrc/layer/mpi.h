// The MPI library of the process, found at run time: neither its headers nor its compiler are needed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace compcoll {
namespace layer {

// An argument in a register or a stack slot: a handle of either width, an address or a number. The calling
// conventions of x86-64 and AArch64 pass all of them alike. The upper half of a 4-byte number or handle is
// undefined.
using Word = uint64_t;

enum class Abi { none, mpich, open_mpi, standard };

// Combiners of the datatypes that the layer flattens. NAMED stands for all predefined datatypes.
enum Combiner {
  NAMED,
  DUP,
  CONTIGUOUS,
  VECTOR,
  HVECTOR,
  INDEXED,
  HINDEXED,
  INDEXED_BLOCK,
  HINDEXED_BLOCK,
  STRUCT,
  SUBARRAY,
  DARRAY,
  RESIZED,
  n_combiners,
};

// Handles, numbers and sizes that differ from library to library, as mpi4py has them.
struct Constants {
  Word comm_null, comm_self, comm_world, type_null, request_null, message_null, info_null, byte, uint64, sum,
      max;
  Word errors_return;
  int undefined, in_status, proc_null, any_source, any_tag;
  int err_buffer, err_count, err_no_mem, err_other, err_request, err_truncate;
  int thread_level, thread_serialized, largest_tag;
  int combiners[n_combiners];
  int cart, graph;  // topologies
  int order_fortran, distribute_block, distribute_none, distribute_default;
  uint32_t status_nbytes, status_error_offset, status_source_offset, status_tag_offset;
};

struct Library : Constants {
  Abi abi;
  void* handle;         // of dlopen
  const char* path;     // of its file
  Word mask;            // the bits of a handle
  Word in_place;        // MPI_IN_PLACE in C
  Word ignored_status;  // MPI_STATUS_IGNORE, and MPI_STATUSES_IGNORE
  int most_threads;     // MPI_THREAD_MULTIPLE, until `configure` is called

  Word handle_of(Word word) const { return word & mask; }
  uint32_t handle_nbytes() const { return abi == Abi::mpich ? 4 : 8; }
  Word handle_at(const void* place) const {
    return abi == Abi::mpich ? *static_cast<const uint32_t*>(place) : *static_cast<const Word*>(place);
  }
  void put_handle(Word handle, void* place) const {
    if (abi == Abi::mpich) *static_cast<uint32_t*>(place) = uint32_t(handle);
    else *static_cast<Word*>(place) = handle;
  }
};

// Symbols and functions on the path of each call, used only within the shared object.
#define COMPCOLL_INTERNAL __attribute__((visibility("hidden")))
#define COMPCOLL_INLINE __attribute__((always_inline)) inline

extern COMPCOLL_INTERNAL Library found_library;
COMPCOLL_INTERNAL const Library& find_library();

// The MPI library that the process has loaded; `abi` is none until there is one.
inline const Library& library() {
  return __atomic_load_n(&found_library.abi, __ATOMIC_ACQUIRE) == Abi::none ? find_library() : found_library;
}

// Fields of an MPI status. `copy_status` copies all but the error, which calls that wait for one request
// leave alone.
int source_of(const void* status);
int tag_of(const void* status);
int64_t nbytes_of_message(const void* status);
void set_nbytes_of_message(void* status, int64_t nbytes);
void copy_status(const void* from, void* to);
constexpr size_t most_nbytes_of_status = 64;

// Uses the MPI library of an object that calls it, such as mpi4py's extension module; false if the object has
// none.
bool use_library_of(void* object);

// Sets what mpi4py knows of the library. The layer serves no calls before.
void configure(const Constants& constants);

// A function of the library itself, such as "PMPI_Comm_size"; null if it has none.
void* library_symbol(const char* name);

// Releases Python's GIL if this thread holds it: another thread that it waits for may need it.
class ReleaseGil {
 public:
  ReleaseGil() {
    if (save) state_ = save();
  }
  ~ReleaseGil() {
    if (state_) restore(state_);
  }
  bool had_lock() const { return state_ != nullptr; }
  ReleaseGil(const ReleaseGil&) = delete;

  // Set in a process that has an interpreter. `save` releases the GIL, or returns null if this thread does
  // not hold it; `restore` takes it back.
  static void* (*save)();
  static void (*restore)(void*);

 private:
  void* state_ = nullptr;
};

// The function that the layer calls next: the former target of a rewritten slot, the function of another
// preloaded tool, or MPI's.
class NextFunction {
 public:
  constexpr explicit NextFunction(const char* name) : name_(name) {}
  const char* name() const { return name_; }
  bool exists() { return found_ || (found_ = find()); }
  void set(void* function) { found_ = function; }
  template <class... Words>
  COMPCOLL_INLINE int operator()(Words... words) {
    auto function = reinterpret_cast<int (*)(Words...)>(get());
    if (!preloaded) return function(words...);
    ReleaseGil released_gil;
    return function(words...);
  }
  // Like `operator()`, with `n` arguments from an array.
  int call(const Word* words, int n);
  // True if the layer is preloaded: then all objects call it, also extension modules of Python, which hold
  // the GIL.
  static bool preloaded;
  // Set by the preloaded object: `behind` finds the next definition of a name, and `is_preloads` is true for
  // its own functions.
  static void* (*behind)(const char* name);
  static bool (*is_preloads)(const void* function);

 private:
  void* get() { return exists() ? found_ : missing(); }
  void* find() const;
  [[noreturn]] void* missing() const;
  const char* const name_;
  void* found_ = nullptr;
};

// A function of the library itself, looked up once.
class MpiFunction {
 public:
  constexpr explicit MpiFunction(const char* name) : name_(name) {}
  bool exists() { return found_ || (found_ = library_symbol(name_)); }
  // Returns `large` if `n` needs more than 32 bits and the library has that function.
  MpiFunction& of(int64_t n, MpiFunction& large) { return n > INT32_MAX && large.exists() ? large : *this; }
  template <class Result = int, class... Words>
  Result call(Words... words) {
    if (!found_) found_ = library_symbol(name_);
    return reinterpret_cast<Result (*)(Words...)>(found_)(words...);
  }

 private:
  const char* const name_;
  void* found_ = nullptr;
};

// Copy callback of an attribute that duplicates of an object do not inherit.
int copy_no_attribute(Word handle, int keyval, void* state, void* value, void* copy, int* flag);

}  // namespace layer
}  // namespace compcoll
