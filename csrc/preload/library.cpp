#include "library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace compcoll {
namespace preload {
namespace {

// The object that defines a function.
const char* file_of(void* function) {
  Dl_info info;
  return function && dladdr(function, &info) ? info.dli_fname : nullptr;
}

// Objects that were loaded for others alone, as mpi4py loads MPI, are in no global scope.
int look_into(dl_phdr_info* info, size_t, void* found) {
  if (!info->dlpi_name || !strstr(info->dlpi_name, "mpi")) return 0;
  void* object = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  if (!object) return 0;
  void* function = dlsym(object, "PMPI_Init");
  dlclose(object);
  if (!function) return 0;
  *static_cast<void**>(found) = function;
  return 1;
}

// An object of the library: an executable that names it may have taken it into its own memory.
Word address_of(void* object, const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  return reinterpret_cast<Word>(found ? found : dlsym(object, name));
}

// By the name that is beside PMPI_Init: the names without P may be in another object.
bool is_standard(void* object) {
  auto version = reinterpret_cast<int (*)(int*, int*)>(dlsym(object, "PMPI_Abi_get_version"));
  int major = -1, minor = -1;
  return version && !version(&major, &minor) && major > 0;
}

void find(Library* mpi) {
  void* function = dlsym(RTLD_NEXT, "PMPI_Init");
  if (!function) dl_iterate_phdr(look_into, &function);
  mpi->path = file_of(function);
  mpi->handle = mpi->path ? dlopen(mpi->path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  if (!mpi->handle) return;
  mpi->mask = ~Word(0), mpi->in_place = 1, mpi->thread_multiple = 3, mpi->proc_null = -2;
  if (dlsym(mpi->handle, "ompi_mpi_comm_world")) {
    mpi->comm_world = address_of(mpi->handle, "ompi_mpi_comm_world");
    mpi->comm_null = address_of(mpi->handle, "ompi_mpi_comm_null");
    mpi->int_type = address_of(mpi->handle, "ompi_mpi_int");
    mpi->min_op = address_of(mpi->handle, "ompi_mpi_op_min");
    mpi->type_null = address_of(mpi->handle, "ompi_mpi_datatype_null");
    mpi->request_null = address_of(mpi->handle, "ompi_request_null");
    mpi->abi = Abi::open_mpi;
  } else if (is_standard(mpi->handle)) {
    mpi->comm_world = 0x101, mpi->comm_null = 0x100;
    mpi->int_type = 0x209, mpi->min_op = 0x22, mpi->type_null = 0x200, mpi->thread_multiple = 4096;
    mpi->proc_null = -3, mpi->request_null = 0x180;
    mpi->abi = Abi::standard;
  } else {
    mpi->comm_world = 0x44000000, mpi->comm_null = 0x04000000;
    mpi->int_type = 0x4c000405, mpi->min_op = 0x58000002, mpi->type_null = 0x0c000000,
    mpi->request_null = 0x2c000000;
    mpi->in_place = ~Word(0), mpi->mask = 0xffffffff, mpi->status_ignore = 1, mpi->proc_null = -1;
    mpi->abi = Abi::mpich;
  }
}

// Where the sentinels of Fortran lie: Open MPI defines them under the names that four compilers give them.
struct Sentinels {
  void* at[4];
  Sentinels(const char* lower, const char* upper) {
    const std::string names[] = {lower, std::string(lower) + "_", std::string(lower) + "__", upper};
    for (int i = 0; i < 4; i++) at[i] = dlsym(RTLD_DEFAULT, names[i].c_str());
  }
  bool have(void* address) const {
    return address && (address == at[0] || address == at[1] || address == at[2] || address == at[3]);
  }
};

}  // namespace

const Library& library() {
  static Library mpi;
  static std::mutex mutex;
  if (__atomic_load_n(&mpi.abi, __ATOMIC_ACQUIRE) == Abi::none) {
    std::lock_guard<std::mutex> lock(mutex);
    if (mpi.abi == Abi::none) {
      Library found;
      find(&found);
      Abi abi = found.abi;
      found.abi = Abi::none;
      mpi = found;
      __atomic_store_n(&mpi.abi, abi, __ATOMIC_RELEASE);
    }
  }
  return mpi;
}

void* own(const char* name) {
  void* found = library().handle ? dlsym(library().handle, name) : nullptr;
  return found ? found : dlsym(RTLD_NEXT, name);
}

void* Next::find() const {
  void* found = dlsym(RTLD_NEXT, name_);
  return found ? found : own((std::string("P") + name_).c_str());
}

void* Next::missing() const {
  fprintf(stderr, "compcoll: %s was called, and no MPI library that is loaded has it\n", name_);
  abort();
}

bool is_status_ignore_of_fortran(void* address) {
  static const Sentinels ignore("mpi_fortran_status_ignore", "MPI_FORTRAN_STATUS_IGNORE");
  return ignore.have(address);
}

Word buffer_of_fortran(void* address) {
  static const Sentinels in_place("mpi_fortran_in_place", "MPI_FORTRAN_IN_PLACE");
  static const Sentinels bottom("mpi_fortran_bottom", "MPI_FORTRAN_BOTTOM");
  if (in_place.have(address)) return library().in_place;
  return bottom.have(address) ? 0 : reinterpret_cast<Word>(address);
}

}  // namespace preload
}  // namespace compcoll
