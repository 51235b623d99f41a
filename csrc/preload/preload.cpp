// The preloaded object: exports MPI's names, and forwards calls to the layer, which is another object. The
// objects that `import compcoll` loads export none of these names; otherwise libraries that are loaded later
// would call them.
//
// Each name is a jump to the layer's function, so that it passes any number of arguments. dlsym is among the
// names: a function that a program finds in the MPI library's file is the layer's, too.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "layer/message_table.h"
#include "layer/operations.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
#define HIDDEN extern "C" __attribute__((visibility("hidden")))

// DLSYM calls `find_served` with its own arguments, and jumps to the next dlsym if that finds nothing: a call
// would hide the caller, which RTLD_NEXT depends on.
#if defined(__x86_64__)
#define JUMP(slot) "jmp *" slot "(%rip)\n"
#define DLSYM                                                                                \
  "push %rdi\npush %rsi\nsub $8, %rsp\ncall find_served\nadd $8, %rsp\npop %rsi\npop %rdi\n" \
  "test %rax, %rax\nje 1f\nret\n1:\n"
constexpr char oldest_version[] = "GLIBC_2.2.5";
#elif defined(__aarch64__)
#define JUMP(slot) "adrp x16, " slot "\nldr x16, [x16, :lo12:" slot "]\nbr x16\n"
#define DLSYM                                                                                 \
  "stp x29, x30, [sp, -32]!\nmov x29, sp\nstp x0, x1, [sp, 16]\nbl find_served\nmov x9, x0\n" \
  "ldp x0, x1, [sp, 16]\nldp x29, x30, [sp], 32\ncbz x9, 1f\nmov x0, x9\nret\n1:\n"
constexpr char oldest_version[] = "GLIBC_2.17";
#endif

#define DEFINE(name, code) \
  asm(".text\n.globl " name "\n.type " name ", %function\n" name ":\n" code ".size " name ", .-" name "\n");
#define NAME(name)             \
  HIDDEN void* slot_##name;    \
  void* slot_##name = nullptr; \
  DEFINE(#name, JUMP("slot_" #name))

#define FORMS(n, name, method, ...) \
  NAME(MPI_##name)                  \
  NAME(MPI_##method)                \
  NAME(MPI_##name##_init)           \
  NAME(MPI_##name##_c) NAME(MPI_##method##_c) NAME(MPI_##name##_init_c)
#define MESSAGE(n, name, ...) NAME(MPI_##name) NAME(MPI_##name##_c)
#define PROBE(n, name, ...) NAME(MPI_##name)

// clang-format off
#define NAMES \
  ACCELERATED(FORMS) OTHERS(FORMS) MESSAGES(MESSAGE, MESSAGE, PROBE) \
  NAME(MPI_Comm_dup) NAME(MPI_Comm_dup_with_info) NAME(MPI_Comm_split) NAME(MPI_Comm_split_type) \
  NAME(MPI_Comm_create) NAME(MPI_Comm_create_group) NAME(MPI_Cart_create) NAME(MPI_Cart_sub) \
  NAME(MPI_Graph_create) NAME(MPI_Dist_graph_create) NAME(MPI_Dist_graph_create_adjacent) \
  NAME(MPI_Comm_free) NAME(MPI_Comm_disconnect) \
  NAME(MPI_Init) NAME(MPI_Init_thread) NAME(MPI_Query_thread) NAME(MPI_Finalize) \
  NAME(MPI_Wait) NAME(MPI_Test) NAME(MPI_Cancel) NAME(MPI_Waitall) NAME(MPI_Waitany) NAME(MPI_Waitsome) \
  NAME(MPI_Testall) NAME(MPI_Testany) NAME(MPI_Testsome) NAME(MPI_Request_get_status) \
  NAME(MPI_Request_get_status_all) NAME(MPI_Request_get_status_any) NAME(MPI_Request_get_status_some) \
  NAME(MPI_Start) NAME(MPI_Startall) NAME(MPI_Request_free) \
  NAME(MPI_Intercomm_create) NAME(MPI_Intercomm_merge) NAME(MPI_Win_create) \
  NAME(MPI_Win_allocate) NAME(MPI_Win_allocate_shared) NAME(MPI_Win_free) NAME(MPI_Win_fence) \
  NAME(MPI_Win_start) NAME(MPI_Win_complete) NAME(MPI_Win_wait) NAME(MPI_Win_lock) NAME(MPI_Win_unlock) NAME(MPI_Win_flush) \
  NAME(MPI_Win_flush_all) NAME(MPI_Win_unlock_all)
// clang-format on

NAMES

namespace {

#undef NAME
#define NAME(name) {#name, &slot_##name},
struct Slot {
  const char* name;
  void** place;
};
const Slot slots[] = {NAMES};

Dl_info this_object() {
  Dl_info info = {};
  dladdr(reinterpret_cast<const void*>(slots), &info);
  return info;
}

void* behind(const char* name) { return dlsym(RTLD_NEXT, name); }

bool is_own(const void* function) {
  Dl_info info;
  return dladdr(function, &info) && info.dli_fbase == this_object().dli_fbase;
}

[[noreturn]] void missing() {
  fprintf(stderr, "compcoll: a function of MPI was called that no library has\n");
  abort();
}

int (*owns_python)() = nullptr;
bool (*is_of_mpi)(const char*, const void*) = nullptr;

// If the layer cannot be loaded, calls go to the next object that defines the function.
__attribute__((constructor)) void load() {
  std::string path = this_object().dli_fname;
  path = path.substr(0, path.find_last_of('/') + 1) + COMPCOLL_LAYER;
  void* layer = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  using Preloaded = void* (*)(void* (*)(const char*), bool (*)(const void*), const char*);
  auto find = layer ? reinterpret_cast<Preloaded>(dlsym(layer, "compcoll_preloaded")) : nullptr;
  if (layer) owns_python = reinterpret_cast<decltype(owns_python)>(dlsym(layer, "compcoll_owns_python"));
  if (!find) fprintf(stderr, "compcoll: calls are not accelerated: %s\n", dlerror());
  for (const Slot& slot : slots) {
    void* function = find ? find(behind, is_own, slot.name) : behind(slot.name);
    *slot.place = function ? function : reinterpret_cast<void*>(missing);
  }
  if (find) is_of_mpi = reinterpret_cast<decltype(is_of_mpi)>(dlsym(layer, "compcoll_is_of_mpi"));
}

}  // namespace

// The next definition of dlsym: the C library's, or another preloaded tool's.
HIDDEN void* (*next_dlsym)(void*, const char*);
void* (*next_dlsym)(void*, const char*) = nullptr;

// The layer's function, if a handle and a name find the MPI library's own; else null.
HIDDEN void* find_served(void* handle, const char* name) {
  if (!next_dlsym)  // the constructors of other objects may come here first
    next_dlsym = reinterpret_cast<decltype(next_dlsym)>(dlvsym(RTLD_NEXT, "dlsym", oldest_version));
  if (!is_of_mpi || handle == RTLD_NEXT || strncmp(name, "MPI_", 4)) return nullptr;
  for (const Slot& slot : slots) {
    if (strcmp(slot.name, name)) continue;
    const void* found = next_dlsym(handle, name);
    return found && is_of_mpi(name, found) ? *slot.place : nullptr;
  }
  return nullptr;
}

DEFINE("dlsym", DLSYM JUMP("next_dlsym"))

// Tells other objects that this one is loaded.
extern "C" __attribute__((visibility("default"))) const int compcoll_is_preloaded;
const int compcoll_is_preloaded = 1;

// A program that embeds Python, such as LAMMPS, may finalise the interpreter that the layer has started
// before MPI ends. That interpreter ends with MPI instead.
EXPORT int Py_FinalizeEx() {
  static auto next = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "Py_FinalizeEx"));
  return (owns_python && owns_python()) || !next ? 0 : next();
}

EXPORT void Py_Finalize() { Py_FinalizeEx(); }
