#include "errors.h"

#include <array>
#include <cstdio>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "comm.h"
#include "python_thread.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction add_error_class("PMPI_Add_error_class"), add_error_code("PMPI_Add_error_code"),
    add_error_string("PMPI_Add_error_string"), comm_call_errhandler("PMPI_Comm_call_errhandler");

// Limits that every MPI supports: codes of a class, and characters of a text.
constexpr size_t most_codes = 64, most_characters = 255;
constexpr const char* names[] = {
    "compcoll: a call could not be carried out as its policy says",
    "compcoll: bytes that are not a sound frame",
    "compcoll: the ranks' calls do not match",
    "compcoll: ranks did not call in time",
    "compcoll: the communicator is in an error state",
    "compcoll: ranks disagree on how calls are compressed",
    "compcoll: a codec has failed",
};

struct Codes {
  std::vector<int> made;
  size_t used = 0;
};

std::mutex mutex;
int no_memory = 0;  // the error code for missing memory

}  // namespace

bool tells_errors = false;

int class_of(Fault fault) {
  static std::array<int, n_faults> made = {};
  std::lock_guard<std::mutex> lock(mutex);
  int& found = made[fault];
  if (!found && !add_error_class.call(&found)) add_error_string.call(found, names[fault]);
  return found;
}

int code_of(Fault fault, const std::string& text) { return code_of(class_of(fault), text); }

int fallback_error(const char* op, uint64_t chunks, const std::string& codec) {
  return code_of(FALLBACK, std::string(op) + ": " + codec + " cannot carry the values of " +
                               std::to_string(chunks) + (chunks == 1 ? " chunk" : " chunks"));
}

int code_of(int error_class, const std::string& text) {
  static auto& all = *new std::map<int, Codes>;
  const std::string cut = text.substr(0, most_characters);
  std::lock_guard<std::mutex> lock(mutex);
  Codes& codes = all[error_class];
  if (codes.made.size() < most_codes) {
    int code = 0;
    if (add_error_code.call(error_class, &code)) return error_class;
    codes.made.push_back(code);
  }
  int code = codes.made[codes.used++ % codes.made.size()];
  add_error_string.call(code, cut.c_str());
  if (tells_errors || cut.size() < text.size()) fprintf(stderr, "compcoll: %s\n", text.c_str());
  return code;
}

int code_of(const engine::Error& error, uint64_t part) {
  if (error.problem == engine::Problem::MPI) return int(error.status);
  if (error.problem == engine::Problem::REFUSED)
    return code_of(BROKEN, "another rank has ended a call of this communicator with an error");
  if (error.problem == engine::Problem::DEVICE) return code_of(library().err_other, error.fault.text());
  Failure failure;
  failure.error = &error, failure.part = part;
  failure.text = "a frame could not be decoded";
  ask_python([&](const Python& python) { python.describe(&failure); });
  return failure.code ? failure.code : code_of(failure.fault, failure.text);
}

void prepare_for_exceptions() {
  if (no_memory || add_error_code.call(library().err_no_mem, &no_memory)) return;
  add_error_string.call(no_memory, "memory has run out in a call of compcoll");
}

int code_of_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return no_memory ? no_memory : library().err_no_mem;
  } catch (const std::exception& problem) {
    try {
      return code_of(library().err_other, problem.what());
    } catch (...) { return library().err_other; }
  } catch (...) { return library().err_other; }
}

int failed_in_collective(Comm& comm) noexcept {
  const int code = code_of_exception();
  comm.fail_without_text();
  return code;
}

int raise(Word comm, int code) {
  comm_call_errhandler.call(comm, Word(int64_t(code)));
  return code;
}

int raise(const Comm& comm, int code) { return raise(comm.gone ? library().comm_world : comm.handle, code); }

}  // namespace layer
}  // namespace compcoll
