// The Python interpreter of a process, started here for programs of C or Fortran, and the environment.
#pragma once
#include <string>

namespace compcoll {
namespace layer {

// A variable of the environment; empty if it is not set.
std::string variable(const char* name);

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

// What Python does in a program of C or Fortran: marks COMM_WORLD and COMM_SELF.
void set_begin(int (*mark_world)());

}  // namespace layer
}  // namespace compcoll
