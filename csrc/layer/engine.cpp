// The process's engine, and the functions of MPI that it calls.
#include "engine.h"

#include <cstdio>
#include <limits>

#include "comm.h"
#include "errors.h"
#include "lifecycle.h"
#include "python_thread.h"

namespace compcoll {
namespace layer {
namespace {

engine::Engine* process_engine = nullptr;
double stall_seconds = std::numeric_limits<double>::infinity();

}  // namespace

engine::Engine& the_engine() { return *process_engine; }

void start_engine(bool threaded, double seconds, double notice_seconds, engine::ThreadMain main) {
  if (process_engine) return;
  watch_end();
  if (engine::driver()) look_at_all();  // small calls may use GPU memory
  stall_seconds = seconds;
  process_engine = new engine::Engine(threaded, seconds, main);
  process_engine->progress().set_notice_seconds(notice_seconds);
  prepare_for_exceptions();
}

bool start_threads() {
  if (!process_engine) return false;
  const bool progresses = process_engine->progress().start();
  return start_python_thread() && progresses;
}

void stop_engine() {
  if (!process_engine) return;
  ReleaseGil released_gil;
  process_engine->stop();
}

std::string timeout_text() {
  char text[80];
  snprintf(text, sizeof text, "more than COMPCOLL_TIMEOUT = %g s", stall_seconds);
  return text;
}

const engine::Library& engine_library() {
  static const engine::Library found = [] {
    engine::Library made = {};
    made.isend = library_symbol("PMPI_Isend"), made.irecv = library_symbol("PMPI_Irecv");
    made.testsome = library_symbol("PMPI_Testsome"), made.test = library_symbol("PMPI_Test");
    made.iprobe = library_symbol("PMPI_Iprobe");
    made.get_count = library_symbol("PMPI_Get_count");
    made.grequest_complete = library_symbol("PMPI_Grequest_complete");
    const Library& mpi = library();
    made.handle_nbytes = mpi.handle_nbytes(), made.status_nbytes = mpi.status_nbytes;
    made.status_error_offset = mpi.status_error_offset;
    made.byte = mpi.byte, made.request_null = mpi.request_null;
    made.undefined = mpi.undefined, made.in_status = mpi.in_status, made.any_source = mpi.any_source;
    return made;
  }();
  return found;
}

}  // namespace layer
}  // namespace compcoll
