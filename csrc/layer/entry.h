// The layer's functions, which take the place of MPI's, and the macros that define them.
//
// Each is named like MPI's function, with the prefix `layer_`, and registered in one list. The slots of
// mpi4py's extension module are rewritten to them (hook.h), or a preloaded object exports MPI's names for
// them (csrc/preload).
#pragma once
#include <vector>

#include "arguments.h"
#include "errors.h"
#include "mpi.h"
#include "python_thread.h"

namespace compcoll {
namespace layer {

struct Function {
  const char* name;  // MPI's
  void* function;
  NextFunction* next;
};

std::vector<Function>& functions();

struct Registered {
  Registered(const char* name, void* function, NextFunction* next) {
    functions().push_back({name, function, next});
  }
};

// Error code of functions that MPI lacks; mpi4py recognizes it.
constexpr int unavailable = int(0xaaaaaaaa);

// False if COMPCOLL_DISABLE is set, and after the layer has ended. `is_ours` is also false in threads that
// are within compcoll.
extern std::atomic<bool> is_enabled;
inline bool is_ours() { return !reentrant && is_enabled.load(std::memory_order_relaxed); }

}  // namespace layer
}  // namespace compcoll

#define CALLER __builtin_return_address(0)

// Defines a function of the layer; `next_NAME` is the function that it calls next.
#define C_FUNCTION(symbol, parameters)                                              \
  static compcoll::layer::NextFunction next_##symbol("MPI_" #symbol);               \
  extern "C" int layer_MPI_##symbol parameters;                                     \
  static compcoll::layer::Registered registered_##symbol(                           \
      "MPI_" #symbol, reinterpret_cast<void*>(layer_MPI_##symbol), &next_##symbol); \
  extern "C" int layer_MPI_##symbol parameters

// N arguments, as parameters (C_n) and by name (A_n).
#define C_1 compcoll::layer::Word a
#define C_2 C_1, compcoll::layer::Word b
#define C_3 C_2, compcoll::layer::Word c
#define C_4 C_3, compcoll::layer::Word d
#define C_5 C_4, compcoll::layer::Word e
#define C_6 C_5, compcoll::layer::Word f
#define C_7 C_6, compcoll::layer::Word g
#define C_8 C_7, compcoll::layer::Word h
#define C_9 C_8, compcoll::layer::Word i
#define C_10 C_9, compcoll::layer::Word j
#define C_11 C_10, compcoll::layer::Word k
#define C_12 C_11, compcoll::layer::Word l
#define A_1 a
#define A_2 A_1, b
#define A_3 A_2, c
#define A_4 A_3, d
#define A_5 A_4, e
#define A_6 A_5, f
#define A_7 A_6, g
#define A_8 A_7, h
#define A_9 A_8, i
#define A_10 A_9, j
#define A_11 A_10, k
#define A_12 A_11, l
