// The making of functions under the names that programs call.
#pragma once
#include "call.h"
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
#define C_10 C_9, Word j
#define C_11 C_10, Word k
#define C_12 C_11, Word l
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
#define F_1 void* a
#define F_2 F_1, void* b
#define F_3 F_2, void* c
#define F_4 F_3, void* d
#define F_5 F_4, void* e
#define F_6 F_5, void* f
#define F_7 F_6, void* g
#define F_8 F_7, void* h
#define F_9 F_8, void* i
#define F_10 F_9, void* j
#define F_11 F_10, void* k
#define F_12 F_11, void* l

namespace compcoll {
namespace preload {

// How a program gives its arguments: as C does, so with counts of 64 bits, or as Fortran does.
enum class Convention { c, large, fortran };

// What an MPI library has no function for: the code by which mpi4py, which looks for names, tells that.
constexpr int unavailable = int(0xaaaaaaaa);

inline bool is_ours() { return !inside && is_enabled(); }

// Handles of C that Fortran gave as numbers.
Word type_of_fortran(const void* number);
Word comm_of_fortran(const void* number);

// A handle goes where the program has room for one, which in C is as wide as a handle.
void give_handle(Convention convention, Word handle, Own& to_fortran, void* place);
Word handle_at(Convention convention, Own& from_fortran, const void* place);
void give_request(Convention convention, Word handle, void* place);
Word request_at(Convention convention, const void* place);
int nbytes_of_handle(Convention convention);

}  // namespace preload
}  // namespace compcoll
