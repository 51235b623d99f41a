// The contents of derived datatypes: the arguments that they were made with.
#pragma once
#include <cstdint>
#include <vector>

#include "mpi.h"

namespace compcoll {
namespace layer {

// The arguments of a datatype's constructor; all numbers have 64 bits.
struct Contents {
  Combiner combiner;
  std::vector<int64_t> numbers;  // in the order of the arguments, without handles
  std::vector<Word> types;
};

// Reads the contents of a datatype; false if it is not derived, or its combiner is unknown.
bool read(Word handle, Contents* made);

// Frees a handle that `read` has returned, unless it is predefined.
void release(Word handle);

}  // namespace layer
}  // namespace compcoll
