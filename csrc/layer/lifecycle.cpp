#include "lifecycle.h"

#include <atomic>

#include "comm.h"
#include "entry.h"
#include "hook.h"
#include "interpreter.h"
#include "recorder.h"
#include "requests.h"

namespace compcoll {
namespace layer {
namespace {

// Seconds for which pending calls may continue when MPI ends. The program does not wait for them; if it is
// correct, their messages have arrived.
constexpr double last_seconds = 1;

int asked = -1;  // the thread level that the program gets, if MPI's differs
bool has_begun = false;  // true if MPI was initialized for a program that may initialize it itself

MpiFunction query_thread("PMPI_Query_thread");

}  // namespace

std::atomic<bool> is_enabled{variable("COMPCOLL_DISABLE").empty() || variable("COMPCOLL_DISABLE") == "0"};

void begin_for_program(int level) {
  int given = 0;
  query_thread.call(&given);
  asked = level < given ? level : given;
  has_begun = true;
}

namespace {

int mpi_ends(Word, int, void*, void*) {
  end_layer();
  return 0;
}

}  // namespace

void watch_end() {
  static MpiFunction create("PMPI_Comm_create_keyval"), set("PMPI_Comm_set_attr");
  static const bool watched = [] {
    int key = 0;
    void* const nothing = nullptr;
    return !create.call(&copy_no_attribute, &mpi_ends, &key, nothing) &&
           !set.call(library().comm_self, key, nothing);
  }();
  (void)watched;
}

void end_layer() {
  static std::atomic<bool> ended{false};
  if (ended.exchange(true)) return;
  if (const Python* here = python()) here->finalize();
  ReentrancyGuard within;
  try {
    end_requests(last_seconds);
    receive_notices(last_seconds);
  } catch (...) { code_of_exception(); }  // the threads must end before MPI in any case
  recorder.end();
  without_python();
  stop_engine();
  end_comms();
  is_enabled = false;
  ReleaseGil::save = nullptr;  // the holder of an ending interpreter's GIL is unknown
}

}  // namespace layer
}  // namespace compcoll

using namespace compcoll::layer;

C_FUNCTION(Init_thread, (int* argc, char*** argv, int required, int* provided)) {
  int given = 0;
  if (has_begun) {
    begin_for_program(required);
    has_begun = false;
    if (provided) *provided = asked;
    return 0;
  }
  leave_environment();
  {
    ReentrancyGuard within;
    int wanted = is_enabled ? library().most_threads : required;
    if (int error = next_Init_thread(argc, argv, wanted, &given)) return error;
    asked = required < given ? required : given;
    if (provided) *provided = asked;
  }
  // A preloaded layer exports names that MPI lacks, but mpi4py looks for them in MPI.
  if (NextFunction::preloaded && is_python()) hook_caller(CALLER);
  if (reentrant || !is_enabled) return 0;
  if (!is_python()) return guarded(library().comm_world, begin_program);
  begin_interpreter();
  return 0;
}

C_FUNCTION(Init, (int* argc, char*** argv)) {
  (void)next_Init;
  return layer_MPI_Init_thread(argc, argv, 0, nullptr);
}

C_FUNCTION(Query_thread, (int* provided)) {
  int error = next_Query_thread(provided);
  if (!error && asked >= 0 && !reentrant) *provided = asked;
  return error;
}

C_FUNCTION(Finalize, ()) {
  if (!reentrant) end_layer();
  int error;
  {
    ReentrancyGuard within;
    error = next_Finalize();
  }
  if (!reentrant) end_interpreter();
  return error;
}
