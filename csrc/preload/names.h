// The making of functions under the names that programs call.
#pragma once
#include "call.h"
#include "interpreter.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

// N arguments, as parameters and by name; all of Fortran's are addresses.
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

// A function of C, whose call is offered to compcoll where MPI has it, if only for counts of 32 bits.
#define C_FUNCTION(n, symbol, older, kinds, parameters, arguments, taken) \
  EXPORT int symbol parameters {                                          \
    static_assert(std::string_view(kinds).size() == n);                   \
    static Next next(#symbol), before(#older);                            \
    const Word words[] = {A_##n};                                         \
    int error;                                                            \
    if (!next.exists() && !before.exists()) return unavailable;           \
    if (taken) return error;                                              \
    if (next.exists()) return next arguments;                             \
    return counts_fit(kinds, words) ? before arguments : unavailable;     \
  }

// A function of Fortran; the address of an error may be left out.
#define FORTRAN_FUNCTION(n, symbol, parameters, arguments, taken) \
  EXPORT void symbol parameters {                                 \
    static Next next(#symbol);                                    \
    const Word words[] = {A_##n};                                 \
    int result;                                                   \
    if (!(taken)) return void(next arguments);                    \
    if (error) *error = result;                                   \
  }

// One of Fortran's functions that Open MPI has of its own, in which other libraries call their own.
#define FORTRAN_OWN(symbol, parameters, arguments, own)        \
  EXPORT void symbol parameters {                              \
    static Next next(#symbol);                                 \
    if (!library().own_fortran()) return void(next arguments); \
    int result = own;                                          \
    if (error) *error = result;                                \
  }

namespace compcoll {
namespace preload {

// How a program gives its arguments: as C does, so with counts of 64 bits, or as Fortran does.
enum class Convention { c, large, fortran };

// What an MPI library has no function for: the code by which mpi4py, which looks for names, tells that.
constexpr int unavailable = int(0xaaaaaaaa);

// Whether counts of 64 bits, of arguments of these kinds, can be given to a function with smaller ones.
bool counts_fit(const char* kinds, const Word* words);

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
