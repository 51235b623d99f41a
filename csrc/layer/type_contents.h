// The contents of derived datatypes: what a program has made one with.
#pragma once
#include <cstdint>
#include <vector>

#include "mpi.h"

namespace compcoll {
namespace layer {

// What a datatype was made with; all numbers have 64 bits.
struct Contents {
  Combiner combiner;
  std::vector<int64_t> numbers;  // in the order of the function's arguments, handles left out
  std::vector<Word> types;
};

// False where a datatype was not made of others, as far as is known here.
bool read(Word handle, Contents* made);

// Gives back a handle that was asked for, but a predefined one.
void release(Word handle);

}  // namespace layer
}  // namespace compcoll
