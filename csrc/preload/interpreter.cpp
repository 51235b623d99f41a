#include "interpreter.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace compcoll {
namespace preload {

thread_local int inside __attribute__((tls_model("initial-exec"))) = 0;

namespace {

const Dispatch* loaded = nullptr;
bool has_ended = false;       // whether there is no interpreter any more
void* main_thread = nullptr;  // of the interpreter that was started here

void* python = RTLD_DEFAULT;

template <class Result = void, class... Args>
Result py(const char* name, Args... args) {
  return reinterpret_cast<Result (*)(Args...)>(dlsym(python, name))(args...);
}

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

bool is_there(const std::string& path) { return !path.empty() && access(path.c_str(), R_OK) == 0; }

std::string folder_of(const std::string& path) { return path.substr(0, path.find_last_of('/')); }

// The Python executable whose packages are to be used: the one that `compcoll run` names, that of the
// installation which this library is part of, or that of the active environment.
std::string executable() {
  if (is_there(variable("COMPCOLL_PYTHON"))) return variable("COMPCOLL_PYTHON");
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&is_enabled), &info) && info.dli_fname) {
    std::string prefix = info.dli_fname;  // PREFIX/lib/pythonX.Y/site-packages/compcoll/preload/NAME
    for (int i = 0; i < 6; i++) prefix = folder_of(prefix);
    if (is_there(prefix + "/bin/python3")) return prefix + "/bin/python3";
  }
  std::string active = variable("VIRTUAL_ENV") + "/bin/python3";
  return is_there(active) ? active : "python3";
}

// Loads libpython of the version that the extension modules were built for.
void* load_libpython(const std::string& program, std::string* problem) {
  char real[PATH_MAX];
  std::string prefix = realpath(program.c_str(), real) ? folder_of(folder_of(real)) : "";
  const std::string name = COMPCOLL_LIBPYTHON;
  // A program that embeds Python has loaded it; the symbols of two libraries would mix.
  if (void* found = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD)) return found;
  if (dlsym(RTLD_DEFAULT, "Py_InitializeEx")) {
    *problem = "the program has another version of Python";
    return nullptr;
  }
  for (const std::string& path : {variable("COMPCOLL_LIBPYTHON"), prefix + "/lib/" + name, name}) {
    if (path.empty()) continue;
    if (void* found = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return found;
  }
  *problem = dlerror();
  return nullptr;
}

// Starts an interpreter as `program` would have it, with its packages and without handlers of signals.
bool start(std::string* problem) {
  std::string program = executable();
  void* library = load_libpython(program, problem);
  if (!library) return false;
  python = library;
  static std::wstring name(program.begin(), program.end());
  if (dlsym(python, "PyInitConfig_Create")) {  // Python 3.14
    void* config = py<void*>("PyInitConfig_Create");
    py<int>("PyInitConfig_SetInt", config, "install_signal_handlers", int64_t(0));
    py<int>("PyInitConfig_SetInt", config, "parse_argv", int64_t(0));
    py<int>("PyInitConfig_SetStr", config, "program_name", program.c_str());
    int failed = py<int>("Py_InitializeFromInitConfig", config);
    py("PyInitConfig_Free", config);
    if (failed) *problem = "Python does not start";
    if (failed) return false;
  } else {
    py("Py_SetProgramName", name.c_str());
    py("Py_InitializeEx", 0);
  }
  main_thread = py<void*>("PyEval_SaveThread");
  return true;
}

// Where there is no mpi4py for the program's MPI library, a sentence says so, and no traceback.
const char* const import_program = R"(
try:
    import compcoll.preload.program
except (ImportError, RuntimeError) as error:
    import sys
    sys._compcoll_problem = (str(error).splitlines() or [repr(error)])[0]
)";

// The extension module finds this library by `compcoll_preload_connect`.
bool import(std::string* problem) {
  int state = py<int>("PyGILState_Ensure");
  if (py<int>("PyRun_SimpleString", import_program)) *problem = "see above";
  if (void* text = py<void*>("PySys_GetObject", "_compcoll_problem"))
    *problem = py<const char*>("PyUnicode_AsUTF8", text);
  py("PyGILState_Release", state);
  return loaded != nullptr;
}

const Dispatch* load() {
  std::string problem = "another version of compcoll was loaded";
  if ((is_python() || start(&problem)) && import(&problem)) return loaded;
  fprintf(stderr, "compcoll: calls are not accelerated: %s\n", problem.c_str());
  return nullptr;
}

}  // namespace

bool is_python() {
  static auto is_initialized = reinterpret_cast<int (*)()>(dlsym(python, "Py_IsInitialized"));
  if (!is_initialized) is_initialized = reinterpret_cast<int (*)()>(dlsym(python, "Py_IsInitialized"));
  return is_initialized && is_initialized();
}

bool is_enabled() {
  static const bool enabled = variable("COMPCOLL_DISABLE").empty() || variable("COMPCOLL_DISABLE") == "0";
  return enabled;
}

const Dispatch* dispatch_if_loaded() {
  if (Unlocked::is_python_program && !is_python()) {  // which has ended: others end MPI later
    loaded = nullptr;
    has_ended = true;
    Unlocked::is_python_program = false;
  }
  return loaded;
}

const Dispatch* dispatch() {
  static std::once_flag once;
  if (!dispatch_if_loaded() && !has_ended) {
    Inside within;
    std::call_once(once, load);
  }
  return loaded;
}

bool Unlocked::is_python_program = false;

void Unlocked::save() {
  if (is_python() && py<int>("PyGILState_Check")) state_ = py<void*>("PyEval_SaveThread");
}

void Unlocked::restore() { py("PyEval_RestoreThread", state_); }

void end_interpreter() {
  if (!main_thread) return;
  py("PyEval_RestoreThread", main_thread);
  main_thread = nullptr;
  loaded = nullptr;
  has_ended = true;
  py<int>("Py_FinalizeEx");
}

}  // namespace preload
}  // namespace compcoll

extern "C" __attribute__((visibility("default"))) void compcoll_preload_connect(
    const compcoll::preload::Dispatch* functions) {
  compcoll::preload::loaded = functions;
  compcoll::preload::Unlocked::is_python_program = !compcoll::preload::main_thread;
}

// A program that embeds Python, as LAMMPS does, may end the interpreter that was started here before MPI ends. That
// one ends with MPI.
extern "C" __attribute__((visibility("default"))) int Py_FinalizeEx() {
  static auto next = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "Py_FinalizeEx"));
  return compcoll::preload::main_thread || !next ? 0 : next();
}

extern "C" __attribute__((visibility("default"))) void Py_Finalize() { Py_FinalizeEx(); }
