// The MPI library of the process, found at run time: neither its headers nor its compiler are needed.
#pragma once
#include <cstdint>

namespace compcoll {
namespace preload {

// An argument as it lies in a register or a stack slot: a handle of either width, an address or a number. The
// calling conventions of x86-64 and AArch64 pass all of them alike; of numbers and handles of 4 bytes the upper
// half is undefined.
using Word = uint64_t;

enum class Abi { none, mpich, open_mpi, standard };

struct Library {
  Abi abi = Abi::none;
  void* handle = nullptr;      // of dlopen
  const char* path = nullptr;  // of its file
  Word mask = 0;               // the bits of a handle
  Word comm_world = 0, comm_null = 0, int_type = 0, min_op = 0, type_null = 0, request_null = 0;
  Word in_place = 0;  // MPI_IN_PLACE in C
  Word status_ignore = 0;
  int proc_null = 0;
  int thread_multiple = 0;

  Word handle_of(Word word) const { return word & mask; }
  // Fortran's names call PMPI and no C function of ours, and pass other handles and sentinels.
  bool own_fortran() const { return abi == Abi::open_mpi; }
};

// The library that the process has loaded; `abi` is none before there is one.
const Library& library();

// A function of the library itself, such as "PMPI_Comm_size".
void* own(const char* name);

// Gives up the lock of a Python program's interpreter, where this thread has it: what it waits for may need it.
class Unlocked {
 public:
  Unlocked() {
    if (is_python_program) save();
  }
  ~Unlocked() {
    if (state_) restore();
  }
  static bool is_python_program;

 private:
  void save();
  void restore();
  void* state_ = nullptr;
};

// The function that a call would reach without this library: that of another tool that was preloaded, or MPI's.
class Next {
 public:
  constexpr explicit Next(const char* name) : name_(name) {}
  bool exists() { return found_ || (found_ = find()); }
  template <class... Words>
  int operator()(Words... words) {
    auto function = reinterpret_cast<int (*)(Words...)>(exists() ? found_ : missing());
    Unlocked unlocked;
    return function(words...);
  }

 private:
  void* find() const;
  [[noreturn]] void* missing() const;
  const char* const name_;
  void* found_ = nullptr;
};

// A function of the library itself, looked up once.
class Own {
 public:
  constexpr explicit Own(const char* name) : name_(name) {}
  template <class Result = int, class... Words>
  Result call(Words... words) {
    if (!found_) found_ = own(name_);
    return reinterpret_cast<Result (*)(Words...)>(found_)(words...);
  }

 private:
  const char* const name_;
  void* found_ = nullptr;
};

// Whether an address that Fortran gave is that of MPI_STATUS_IGNORE.
bool is_status_ignore_of_fortran(void* address);

// The value of MPI_IN_PLACE or MPI_BOTTOM in C for an address that Fortran gave.
Word buffer_of_fortran(void* address);

}  // namespace preload
}  // namespace compcoll
