// The MPI library of the process, found at run time: neither its headers nor its compiler are needed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace compcoll {
namespace layer {

// An argument as it lies in a register or a stack slot: a handle of either width, an address or a number. The
// calling conventions of x86-64 and AArch64 pass all of them alike; of numbers and handles of 4 bytes the
// upper half is undefined.
using Word = uint64_t;

enum class Abi { none, mpich, open_mpi, standard };

// How datatypes are made, as far as the layer flattens them; NAMED stands for all that MPI has from the
// beginning.
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
  int most_threads;     // MPI_THREAD_MULTIPLE, before there are `Constants`

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

// Of what is used within the shared object alone, in the way of each call.
#define COMPCOLL_INTERNAL __attribute__((visibility("hidden")))
#define COMPCOLL_INLINE __attribute__((always_inline)) inline

extern COMPCOLL_INTERNAL Library found_library;
COMPCOLL_INTERNAL const Library& find_library();

// The library that the process has loaded; `abi` is none before there is one.
inline const Library& library() {
  return __atomic_load_n(&found_library.abi, __ATOMIC_ACQUIRE) == Abi::none ? find_library() : found_library;
}

// A status of MPI's: who has sent a message, its bytes, and a copy of it but for its error, which calls that
// wait for one request leave alone.
int source_of(const void* status);
int tag_of(const void* status);
int64_t nbytes_of_message(const void* status);
void set_nbytes_of_message(void* status, int64_t nbytes);
void copy_status(const void* from, void* to);
constexpr size_t most_nbytes_of_status = 64;

// Has functions looked up in the library of an object that calls it, such as mpi4py's extension module; false
// where that has none.
bool use_library_of(void* object);

// Takes over what mpi4py knows; until then there is nothing for the layer to do.
void configure(const Constants& constants);

// A function of the library itself, such as "PMPI_Comm_size"; null where it has none.
void* library_symbol(const char* name);

// Gives up the lock of Python's interpreter, where this thread has it: what it waits for may need it.
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

  // Of a process that has an interpreter: gives the lock up, or null where this thread has none; and takes it
  // back.
  static void* (*save)();
  static void (*restore)(void*);

 private:
  void* state_ = nullptr;
};

// The function that a call reaches behind the layer: what a slot held that was rewritten, that of another
// tool that was preloaded, or MPI's.
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
  // The same with so many words.
  int call(const Word* words, int n);
  // Whether programs' own objects call what is here: Python's extension modules among them, with its lock.
  static bool preloaded;
  // Of an object that was preloaded: what comes behind it by a name, and whether a function is its own.
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
  // The same where `n` needs more than 32 bits, if the library has one for that.
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

// MPI's callback of an attribute that duplicates of an object do not get.
int copy_no_attribute(Word handle, int keyval, void* state, void* value, void* copy, int* flag);

}  // namespace layer
}  // namespace compcoll
