// The beginning and the end of the layer in a process, and the Python interpreter of programs that have none.
#pragma once
#include <string>

namespace compcoll {
namespace layer {

// Whether the process is Python's, or has had an interpreter started before.
bool is_python();

// The settings of `compcoll run` that this process was started with, as JSON; empty where it is none of a job's
// ranks.
const std::string& job_settings();

// Takes what makes this process a rank of the job out of the environment, when MPI begins: a program that the
// process starts later is none.
void leave_environment();

// Starts an interpreter for a program of C or Fortran when MPI has begun, and has Python mark what it has;
// MPI's code.
int begin_program();

// Ends the interpreter that was started here.
void end_interpreter();

// Ends all that is under way, before MPI ends, once; and has MPI do so where a library ends it whose calls do
// not come here.
void end_layer();
void watch_end();

// What Python does in a program of C or Fortran: marks COMM_WORLD and COMM_SELF.
void set_begin(int (*mark_world)());
// MPI has begun for a program that runs in this interpreter: the program may still begin it, once, and is told
// of this level of threads.
void begin_for_program(int level);

}  // namespace layer
}  // namespace compcoll
