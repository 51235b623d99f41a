// Errors as MPI's classes and codes: a class for each kind, and codes with texts, which are reused in turn.
#pragma once
#include <memory>
#include <string>

#include "engine/coding.h"
#include "mpi.h"

namespace compcoll {
namespace layer {

enum Fault : int {
  FALLBACK,  // a `strict` call could not run as its policy says
  FRAME, // a frame is damaged, or a rank could not encode its values
  MISMATCH, // the ranks' calls do not match
  TIMEOUT, // a rank did not arrive, or sent nothing
  BROKEN, // an earlier call of the communicator did not end properly
  POLICY, // ranks disagree on how calls are compressed
  CODEC, // a codec of another package failed
  n_faults,
};

// MPI's error class of a kind, made at the first use.
int class_of(Fault fault);

// An error code of a class, with this text.
int code_of(Fault fault, const std::string& text);
int code_of(int error_class, const std::string& text);  // of MPI's own classes

// The error code for chunks that a lossy codec cannot encode and that must not be lossless.
int fallback_error(const char* op, uint64_t chunks, const std::string& codec);

// An error of the engine, for Python, which sets the other fields.
struct Failure {
  const engine::Error* error;
  uint64_t part;  // number of the part that failed
  int code = 0;  // MPI's error code, if MPI reported the error
  Fault fault = FRAME;
  std::string text;
};

// The code of an error of the engine.
int code_of(const engine::Error& error, uint64_t part);

// Calls the communicator's error handler with a code, and returns the code.
int raise(Word comm, int code);

class Comm;
int raise(const Comm& comm, int code);  // the communicator may be freed meanwhile

// The error code of the current exception; MPI_ERR_NO_MEM if memory ran out.
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

// True if errors are also printed to stderr, in programs without exceptions.
extern bool tells_errors;

}  // namespace layer
}  // namespace compcoll
