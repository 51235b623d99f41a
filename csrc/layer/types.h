// MPI's datatypes: predefined ones by their handles, and derived ones flattened to their basic type and to
// where their bytes lie. That is done once for each datatype, which keeps it as an attribute until it is
// freed: a handle may be that of another datatype by then.
#pragma once
#include <cstdint>
#include <vector>

#include "abi.h"
#include "mpi.h"
#include "pieces.h"

namespace compcoll {
namespace layer {

// Why calls of a datatype without an element, or with bytes in unknown places, go to MPI.
constexpr char unknown_type[] = "the datatype has several basic types, or one that no codec takes";

// One entry of a datatype.
struct Type {
  uint64_t id = 0;  // of no other, ever
  uint32_t element =
      0;  // code of the basic type of all its values; 0 where there are several, or it is none of abi.h's
  bool known = true;  // whether it is known where its bytes lie
  bool basic = false;  // whether entries are elements of an array
  bool summable = false;  // whether MPI adds it up
  Word own_sum = 0;  // the operation that adds its values where MPI has none
  uint64_t nbytes = 0;
  int64_t extent = 0, lower = 0,
          length = 0;  // MPI's extent, its first byte, and the bytes over which it stretches
  Piece piece;
  bool shaped = false;  // whether its elements have a shape:
  std::vector<uint64_t> shape;  // along each dimension of more than one, the last one the fastest

  // So many entries.
  Piece many(int64_t count) const { return repeated(count, extent, piece); }
};

// Tells of a predefined datatype; before any is asked for.
void add_predefined(Word handle, uint64_t nbytes, uint32_t element, bool summable);

// The datatype of a handle, which lives until that is freed; null where it is not committed, or no datatype.
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

// Bytes of an entry; 0 of what is no datatype, which MPI has to say.
uint64_t nbytes_of_derived(Word handle);
COMPCOLL_INLINE uint64_t nbytes_of(Word handle) {
  handle = library().handle_of(handle);
  const Predefined& known = predefined_at(handle);
  return known.handle ? known.nbytes : nbytes_of_derived(handle);
}

// The operation that adds up 16-bit floats of a type; 0 where MPI makes none.
Word sum_of_halves(uint32_t element);

// Has the values of a datatype taken for those of another type of the same size, such as a float that MPI
// lacks; MPI adds them up by an operation, and so do we where they are summable. False where MPI does not let
// it.
bool override_element_type(Word handle, uint32_t element, Word sum, bool summable);

// The code of the real type of a complex one; others are theirs.
inline uint32_t real_of(uint32_t element) {
  return element == COMPLEX64 ? uint32_t(FLOAT32) : element == COMPLEX128 ? uint32_t(FLOAT64) : element;
}

}  // namespace layer
}  // namespace compcoll
