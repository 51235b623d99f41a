// The Python interpreter of a process, started here for programs of C or Fortran, and the environment.
#pragma once
#include <string>

namespace compcoll {
namespace layer {

// A variable of the environment; empty if it is not set.
std::string variable(const char* name);

// True if the process has a Python interpreter.
bool is_python();

// The settings of `compcoll run` at the start of this process, as JSON; empty if the process is no rank of a
// job.
const std::string& job_settings();

// Removes the job's variables from the environment when MPI is initialized: programs that this process starts
// later are not ranks of the job.
void leave_environment();

// Starts an interpreter for a program of C or Fortran when MPI is initialized, and lets Python mark the
// predefined communicators; MPI's code.
int begin_program();

// Lets a running interpreter accelerate its program when MPI is initialized, if the process is a rank of
// `compcoll run`.
void begin_interpreter();

// Ends the interpreter that was started here.
void end_interpreter();

// Sets Python's function for programs of C or Fortran, which marks COMM_WORLD and COMM_SELF.
void set_begin(int (*mark_world)());

}  // namespace layer
}  // namespace compcoll
