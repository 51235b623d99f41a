// MPI's datatypes: predefined ones by their handles, and derived ones flattened to their basic type and
// layout. Each datatype is flattened once and keeps the result as an attribute until it is freed: its handle
// may be reused after that.
#pragma once
#include <cstdint>
#include <vector>

#include "abi.h"
#include "mpi.h"
#include "pieces.h"

namespace compcoll {
namespace layer {

// Reason to leave calls to MPI whose datatype has no element code, or an unknown layout.
constexpr char unknown_type[] = "the datatype has several basic types, or one that no codec takes";

// One entry of a datatype.
struct Type {
  uint64_t id = 0;  // unique, never reused
  uint32_t element = 0;  // code of the basic type; 0 if there are several, or abi.h does not list it
  bool known = true;  // true if the layout of its bytes is known
  bool basic = false;  // true if entries are elements of an array
  bool summable = false;  // true if its values can be added up
  Word own_sum = 0;  // operation that adds its values, if MPI has none
  uint64_t nbytes = 0;
  int64_t extent = 0, lower = 0, length = 0;  // MPI's extent, true lower bound and true extent
  Piece piece;
  bool shaped = false;  // true if its elements have a shape
  std::vector<uint64_t> shape;  // sizes of the dimensions longer than 1, the fastest last

  // The layout of `count` entries.
  Piece many(int64_t count) const { return repeated(count, extent, piece); }
};

// Registers a predefined datatype, before the first look-up.
void add_predefined(Word handle, uint64_t nbytes, uint32_t element, bool summable);

// The datatype of a handle, which lives until the handle is freed; null if that is no committed datatype.
const Type* type_of(Word handle);

// Predefined datatypes by their handles, in a hash table with several times as many places.
struct Predefined {
  Word handle;
  uint64_t nbytes;
  const Type* type;
};
constexpr size_t n_predefined = 1024;
extern COMPCOLL_INTERNAL Predefined predefined[n_predefined];
COMPCOLL_INLINE Predefined& predefined_at(Word handle) {
  size_t i = (handle ^ handle >> 12) * 0x9e3779b97f4a7c15 >> 54;
  while (predefined[i].handle && predefined[i].handle != handle) i = (i + 1) % n_predefined;
  return predefined[i];
}

// Bytes of an entry; 0 if the handle is no datatype, which MPI has to report.
uint64_t nbytes_of_derived(Word handle);
COMPCOLL_INLINE uint64_t nbytes_of(Word handle) {
  handle = library().handle_of(handle);
  const Predefined& known = predefined_at(handle);
  return known.handle ? known.nbytes : nbytes_of_derived(handle);
}

// The operation that adds up 16-bit floats of a type; 0 if MPI cannot make one.
Word sum_of_halves(uint32_t element);

// Treats the values of a datatype as another type of the same size, such as a float that MPI lacks. MPI adds
// them up by `sum`, and the engine adds them up if they are summable. False if MPI cannot attach the type.
bool override_element_type(Word handle, uint32_t element, Word sum, bool summable);

// The code of the real type of a complex type; other types are returned as they are.
inline uint32_t real_of(uint32_t element) {
  return element == COMPLEX64 ? uint32_t(FLOAT32) : element == COMPLEX128 ? uint32_t(FLOAT64) : element;
}

}  // namespace layer
}  // namespace compcoll
