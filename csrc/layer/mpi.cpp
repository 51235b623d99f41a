#include "mpi.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace compcoll {
namespace layer {

Library found_library = {};

namespace {

std::mutex mutex;  // of the search

// Searches the objects that were loaded locally, as mpi4py loads MPI, and so are in no global scope. Opens
// them only after the walk, during which the loader's lock is held.
void* find_in_objects() {
  std::vector<std::string> names;
  auto note = [](dl_phdr_info* info, size_t, void* names) {
    if (info->dlpi_name && strstr(info->dlpi_name, "mpi"))
      static_cast<std::vector<std::string>*>(names)->emplace_back(info->dlpi_name);
    return 0;
  };
  dl_iterate_phdr(note, &names);
  for (const std::string& name : names) {
    void* object = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    void* function = object ? dlsym(object, "PMPI_Init") : nullptr;
    if (object) dlclose(object);
    if (function) return function;
  }
  return nullptr;
}

// Looks up the name with P, which is beside PMPI_Init: names without P may be in another object.
bool is_standard(void* object) {
  auto version = reinterpret_cast<int (*)(int*, int*)>(dlsym(object, "PMPI_Abi_get_version"));
  int major = -1, minor = -1;
  return version && !version(&major, &minor) && major > 0;
}

// Requires the lock.
void describe(void* function) {
  Library mpi = {};
  Dl_info info;
  mpi.path = function && dladdr(function, &info) ? info.dli_fname : nullptr;
  mpi.handle = mpi.path ? dlopen(mpi.path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  if (!mpi.handle) return;
  mpi.mask = ~Word(0), mpi.in_place = 1, mpi.most_threads = 3;
  if (dlsym(mpi.handle, "ompi_mpi_comm_world")) {
    mpi.abi = Abi::open_mpi;
  } else if (is_standard(mpi.handle)) {
    mpi.most_threads = 4096, mpi.abi = Abi::standard;
  } else {
    mpi.in_place = ~Word(0), mpi.mask = 0xffffffff, mpi.ignored_status = 1, mpi.abi = Abi::mpich;
  }
  Abi abi = mpi.abi;
  mpi.abi = Abi::none;
  found_library = mpi;
  __atomic_store_n(&found_library.abi, abi, __ATOMIC_RELEASE);
}

}  // namespace

const Library& find_library() {
  void* function = dlsym(RTLD_DEFAULT, "PMPI_Init");
  if (!function) function = find_in_objects();
  std::lock_guard<std::mutex> lock(mutex);
  if (found_library.abi == Abi::none) describe(function);
  return found_library;
}

bool use_library_of(void* object) {
  std::lock_guard<std::mutex> lock(mutex);
  if (found_library.abi == Abi::none) describe(dlsym(object, "PMPI_Init"));
  return found_library.abi != Abi::none;
}

void configure(const Constants& constants) { static_cast<Constants&>(found_library) = constants; }

void* library_symbol(const char* name) {
  void* found = library().handle ? dlsym(library().handle, name) : nullptr;
  return found ? found : dlsym(RTLD_DEFAULT, name);
}

namespace {

MpiFunction get_count_c("PMPI_Get_count_c"), get_elements_x("PMPI_Get_elements_x"),
    set_elements_c("PMPI_Status_set_elements_c"), set_elements_x("PMPI_Status_set_elements_x");

int field(const void* status, uint32_t offset) {
  int value;
  memcpy(&value, static_cast<const char*>(status) + offset, sizeof value);
  return value;
}

}  // namespace

int source_of(const void* status) { return field(status, library().status_source_offset); }

int tag_of(const void* status) { return field(status, library().status_tag_offset); }

int64_t nbytes_of_message(const void* status) {
  int64_t nbytes = 0;
  (get_count_c.exists() ? get_count_c : get_elements_x).call(status, library().byte, &nbytes);
  return nbytes;
}

void set_nbytes_of_message(void* status, int64_t nbytes) {
  (set_elements_c.exists() ? set_elements_c : set_elements_x).call(status, library().byte, nbytes);
}

void copy_status(const void* from, void* to) {
  const Library& mpi = library();
  const int error = field(to, mpi.status_error_offset);
  memcpy(to, from, mpi.status_nbytes);
  memcpy(static_cast<char*>(to) + mpi.status_error_offset, &error, sizeof error);
}

void* (*ReleaseGil::save)() = nullptr;
void (*ReleaseGil::restore)(void*) = nullptr;

void* (*NextFunction::behind)(const char*) = nullptr;
bool (*NextFunction::is_preloads)(const void*) = nullptr;

void* NextFunction::find() const {
  void* found = behind ? behind(name_) : nullptr;
  return found ? found : library_symbol((std::string("P") + name_).c_str());
}

void* NextFunction::missing() const {
  fprintf(stderr, "compcoll: %s was called, and no MPI library that is loaded has it\n", name_);
  abort();
}

namespace {

template <size_t... i>
int invoke_with(void* function, const Word* words, std::index_sequence<i...>) {
  return reinterpret_cast<int (*)(decltype(Word(i))...)>(function)(words[i]...);
}

template <size_t n>
int invoke_with(void* function, const Word* words) {
  return invoke_with(function, words, std::make_index_sequence<n>());
}

}  // namespace

int NextFunction::call(const Word* words, int n) {
  using Invoke = int (*)(void*, const Word*);
  constexpr Invoke with[] = {invoke_with<0>, invoke_with<1>, invoke_with<2>,  invoke_with<3>,
                             invoke_with<4>, invoke_with<5>, invoke_with<6>,  invoke_with<7>,
                             invoke_with<8>, invoke_with<9>, invoke_with<10>, invoke_with<11>};
  if (!preloaded) return with[n](get(), words);
  ReleaseGil released_gil;
  return with[n](get(), words);
}

bool NextFunction::preloaded = false;

int copy_no_attribute(Word, int, void*, void*, void*, int* flag) { return *flag = 0; }

}  // namespace layer
}  // namespace compcoll

// True if a function of this name is the MPI library's own, and not a tool's, for csrc/preload/preload.cpp.
extern "C" __attribute__((visibility("default"))) bool compcoll_is_of_mpi(const char* name,
                                                                          const void* function) {
  return function == compcoll::layer::library_symbol((std::string("P") + name).c_str());
}
