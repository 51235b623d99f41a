#include "interpreter.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "errors.h"
#include "mpi.h"
#include "python_thread.h"

namespace compcoll {
namespace layer {

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

namespace {

void* main_thread = nullptr;  // main thread state of the interpreter that was started here
int (*mark_world)() = nullptr;
void* python_library = RTLD_DEFAULT;

template <class Result = void, class... Args>
Result py(const char* name, Args... args) {
  return reinterpret_cast<Result (*)(Args...)>(dlsym(python_library, name))(args...);
}

constexpr char settings_name[] = "COMPCOLL_SETTINGS";
const std::string settings = variable(settings_name);

bool is_there(const std::string& path) { return !path.empty() && access(path.c_str(), R_OK) == 0; }

std::string folder_of(const std::string& path) { return path.substr(0, path.find_last_of('/')); }

std::string file_of(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// LD_PRELOAD without the layer's preloaded object.
std::string other_preloads() {
  Dl_info info;
  const void* mark = dlsym(RTLD_DEFAULT, "compcoll_is_preloaded");
  const std::string own = mark && dladdr(mark, &info) ? file_of(info.dli_fname) : "";
  const std::string all = variable("LD_PRELOAD");
  std::string others;
  for (size_t at = 0; (at = all.find_first_not_of(": ", at)) != std::string::npos;) {
    const size_t end = std::min(all.find_first_of(": ", at), all.size());
    const std::string one = all.substr(at, end - at);
    if (file_of(one) != own) others += (others.empty() ? "" : ":") + one;
    at = end;
  }
  return others;
}

// Sets an environment variable, or removes it if the value is empty. Python's copy is updated, too.
void set_variable(const char* name, const std::string& value) {
  if (value.empty()) unsetenv(name);
  else setenv(name, value.c_str(), 1);
  if (!is_python()) return;
  std::string digits;
  for (const unsigned char c : value) digits += {"0123456789abcdef"[c / 16], "0123456789abcdef"[c % 16]};
  const std::string copy = "__import__('os').environb", key = "b'" + std::string(name) + "'";
  const std::string code = value.empty() ? copy + ".pop(" + key + ", None)"
                                         : copy + "[" + key + "] = bytes.fromhex('" + digits + "')";
  const int state = py<int>("PyGILState_Ensure");
  py<int>("PyRun_SimpleString", code.c_str());
  py("PyGILState_Release", state);
}

// The Python executable whose packages are used: the one that `compcoll run` names, else that of this
// library's installation, else that of the active environment.
std::string executable() {
  if (is_there(variable("COMPCOLL_PYTHON"))) return variable("COMPCOLL_PYTHON");
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&begin_program), &info) && info.dli_fname) {
    std::string prefix = info.dli_fname;  // PREFIX/lib/pythonX.Y/site-packages/compcoll/NAME
    for (int i = 0; i < 5; i++) prefix = folder_of(prefix);
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
  // A program that embeds Python has loaded libpython already. The symbols of two libraries would mix.
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

// Starts an interpreter with the packages of `executable()`, and without signal handlers.
bool start(std::string* problem) {
  std::string program = executable();
  void* library = load_libpython(program, problem);
  if (!library) return false;
  python_library = library;
  static std::wstring name(program.begin(), program.end());
  if (dlsym(library, "PyInitConfig_Create")) {  // Python 3.14
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

// If there is no mpi4py for the program's MPI library, one sentence is printed, without a traceback.
const char* const import_program = R"(
try:
    import compcoll.preload.program
except (ImportError, RuntimeError) as error:
    import sys
    sys._compcoll_problem = (str(error).splitlines() or [repr(error)])[0]
)";

// The program of a running interpreter, which may be another Python than compcoll's.
const char* const accelerate_program = R"(exec(r'''
import sys
try:
    from compcoll.preload.running import accelerate
except Exception as error:
    sys.stderr.write("compcoll: calls are not accelerated: %s: %s\n" % (sys.executable, error))
else:
    accelerate()
''', {}))";

// Imports the module that passes a function to `set_begin`.
bool import(std::string* problem) {
  int state = py<int>("PyGILState_Ensure");
  if (py<int>("PyRun_SimpleString", import_program)) *problem = "see above";
  if (void* text = py<void*>("PySys_GetObject", "_compcoll_problem"))
    *problem = py<const char*>("PyUnicode_AsUTF8", text);
  py("PyGILState_Release", state);
  return mark_world != nullptr;
}

}  // namespace

bool is_python() {
  static auto is_initialized = reinterpret_cast<int (*)()>(dlsym(python_library, "Py_IsInitialized"));
  if (!is_initialized)
    is_initialized = reinterpret_cast<int (*)()>(dlsym(python_library, "Py_IsInitialized"));
  return is_initialized && is_initialized();
}

const std::string& job_settings() { return settings; }

void leave_environment() {
  if (!NextFunction::preloaded) return;
  set_variable(settings_name, "");
  set_variable("LD_PRELOAD", other_preloads());
}

int begin_program() {
  std::string problem = "another version of compcoll was loaded";
  ReentrancyGuard within;
  if (start(&problem) && import(&problem)) {
    tells_errors = true;
    const int error = mark_world();
    return error ? raise(library().comm_world, error) : 0;
  }
  fprintf(stderr, "compcoll: calls are not accelerated: %s\n", problem.c_str());
  return 0;
}

void begin_interpreter() {
  if (settings.empty()) return;
  const int state = py<int>("PyGILState_Ensure");
  py<int>("PyRun_SimpleString", accelerate_program);
  py("PyGILState_Release", state);
}

void end_interpreter() {
  if (!main_thread) return;
  py("PyEval_RestoreThread", main_thread);
  main_thread = nullptr;
  py<int>("Py_FinalizeEx");
}
void set_begin(int (*mark)()) { mark_world = mark; }

}  // namespace layer
}  // namespace compcoll

// True if the interpreter was started here. In that case the interpreter lives until MPI ends, even if
// a program that embeds Python, such as LAMMPS, finalizes it earlier.
extern "C" __attribute__((visibility("default"))) int compcoll_owns_python() {
  return compcoll::layer::main_thread != nullptr;
}
