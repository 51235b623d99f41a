// Errors, as MPI has them: a class for each kind, and codes with their texts, which are used again in turn.
#pragma once
#include <memory>
#include <string>

#include "engine/coding.h"
#include "mpi.h"

namespace compcoll {
namespace layer {

enum Fault : int {
  FALLBACK,  // a call with `strict` could not be carried out as its policy says
  FRAME, // damaged, or a rank could not encode its values
  MISMATCH, // ranks have made calls that do not go together
  TIMEOUT, // a rank has not come, or sent nothing
  BROKEN, // an earlier call of the communicator has not ended
  POLICY, // ranks disagree on how calls are compressed
  CODEC, // of another package has failed
  n_faults,
};

// MPI's error class of a kind; made when it is first asked for.
int class_of(Fault fault);

// A code of a class, of this text.
int code_of(Fault fault, const std::string& text);
int code_of(int error_class, const std::string& text);  // of one of MPI's own classes

// The code of chunks that a lossy codec cannot carry, where they may not go lossless.
int fallback_error(const char* op, uint64_t chunks, const std::string& codec);

// What Python makes of an error of the engine.
struct Failure {
  const engine::Error* error;
  uint64_t part;  // the number of the part of a call that failed
  int code = 0;  // MPI's, if it is MPI's
  Fault fault = FRAME;
  std::string text;
};

// The code of an error of the engine.
int code_of(const engine::Error& error, uint64_t part);

// Has a communicator's error handler deal with a code; the code, where that returns.
int raise(Word comm, int code);

class Comm;
int raise(const Comm& comm, int code);  // which may be freed

// The code of the exception that is being handled: of MPI_ERR_NO_MEM where memory ran out.
int code_of_exception() noexcept;
// Creates the code of `code_of_exception` while there is memory.
void prepare_for_exceptions();

// Runs the body of an MPI function. An exception becomes an MPI error, raised with the communicator's error
// handler. In a collective the communicator fails as well: this rank may not have taken the tags of the call,
// or may not have sent its frames.
template <class Body>
int guarded(Word comm, Body&& body) {
  int code;
  try {
    return body();
  } catch (...) { code = code_of_exception(); }
  return raise(comm, code);
}
int failed_in_collective(Comm& comm) noexcept;
template <class Body>
int guarded(Comm& comm, Body&& body) {
  int code;
  try {
    return body();
  } catch (...) { code = failed_in_collective(comm); }
  return raise(comm, code);
}

// Whether errors are said on the standard error output as well: in programs without exceptions.
extern bool tells_errors;

}  // namespace layer
}  // namespace compcoll
