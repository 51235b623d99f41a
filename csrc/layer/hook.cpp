#include "hook.h"

#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "entry.h"

namespace compcoll {
namespace layer {
namespace {

#if defined(__x86_64__)
constexpr uint32_t slot_types[] = {R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT};
#elif defined(__aarch64__)
constexpr uint32_t slot_types[] = {R_AARCH64_GLOB_DAT, R_AARCH64_JUMP_SLOT};
#endif

// A loaded object: its addresses, and the tables that describe its slots.
struct Object {
  std::string name;
  uintptr_t base = 0, relro = 0, relro_end = 0, first = ~uintptr_t(0), end = 0;
  const ElfW(Rela) * relocations[2] = {};
  size_t n_relocations[2] = {};
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;

  bool contains(const void* address) const {
    auto at = reinterpret_cast<uintptr_t>(address);
    return at >= first && at < end;
  }
};

// Callback of `dl_iterate_phdr`: fills in an `Object`. The loader's lock is held, so no object may be opened.
int describe(dl_phdr_info* info, size_t, void* wanted) {
  auto object = static_cast<Object*>(wanted);
  if (info->dlpi_addr != object->base) return 0;
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& header = info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + header.p_vaddr, end = at + header.p_memsz;
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(at);
    if (header.p_type == PT_LOAD) {
      object->first = std::min(object->first, at);
      object->end = std::max(object->end, end);
    }
    // The loader protects whole pages.
    if (header.p_type == PT_GNU_RELRO)
      object->relro = at & ~(page - 1), object->relro_end = end & ~(page - 1);
  }
  size_t nbytes[2] = {};
  for (auto entry = dynamic; entry && entry->d_tag != DT_NULL; entry++) {
    auto at = reinterpret_cast<const void*>(entry->d_un.d_ptr);
    switch (entry->d_tag) {
      case DT_RELA: object->relocations[0] = static_cast<const ElfW(Rela)*>(at); break;
      case DT_RELASZ: nbytes[0] = entry->d_un.d_val; break;
      case DT_JMPREL: object->relocations[1] = static_cast<const ElfW(Rela)*>(at); break;
      case DT_PLTRELSZ: nbytes[1] = entry->d_un.d_val; break;
      case DT_SYMTAB: object->symbols = static_cast<const ElfW(Sym)*>(at); break;
      case DT_STRTAB: object->strings = static_cast<const char*>(at); break;
    }
  }
  for (int i = 0; i < 2; i++)
    object->n_relocations[i] = object->relocations[i] ? nbytes[i] / sizeof(ElfW(Rela)) : 0;
  return 1;
}

bool is_slot(const ElfW(Rela) & relocation) {
  for (uint32_t type : slot_types)
    if (ELF64_R_TYPE(relocation.r_info) == type) return true;
  return false;
}

void write(const Object& object, void** slot, void* value) {
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(slot);
  const bool guarded = at >= object.relro && at < object.relro_end;
  void* start = reinterpret_cast<void*>(at & ~(page - 1));
  if (guarded) mprotect(start, page, PROT_READ | PROT_WRITE);
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (guarded) mprotect(start, page, PROT_READ);
}

// Functions that the layer provides if MPI lacks them.
bool is_served(std::string_view name) {
  if (name == "MPI_Isendrecv" || name == "MPI_Isendrecv_replace") return true;
  for (int i = 0; i < n_accelerated; i++)
    if (name == std::string("MPI_") + operations[i].name + "_init") return true;
  return false;
}

// True if the layer handles mpi4py's calls of a function when it is not preloaded.
bool is_hooked(std::string_view name) {
  for (const char* other : {"MPI_Init", "MPI_Init_thread", "MPI_Query_thread"})
    if (name == other) return false;
  return true;
}

// Calls `visit` with the name and address of each slot of a function; returns their number.
template <class Visit>
int visit_slots(const Object& object, Visit&& visit) {
  int n_slots = 0;
  for (int part = 0; part < 2; part++) {
    for (size_t i = 0; i < object.n_relocations[part]; i++) {
      const ElfW(Rela) & relocation = object.relocations[part][i];
      if (!is_slot(relocation)) continue;
      n_slots++;
      visit(object.strings + object.symbols[ELF64_R_SYM(relocation.r_info)].st_name,
            reinterpret_cast<void**>(object.base + relocation.r_offset));
    }
  }
  return n_slots;
}

std::unordered_map<std::string_view, const Function*> functions_by_name() {
  std::unordered_map<std::string_view, const Function*> found;
  for (const Function& function : functions()) found[function.name] = &function;
  return found;
}

const void* hooked_base = nullptr;

const void* base_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) ? info.dli_fbase : nullptr;
}

}  // namespace

bool is_of_hooked(const void* caller) { return hooked_base && base_of(caller) == hooked_base; }

int hook(void* handle, std::string* problem) {
  link_map* map = nullptr;
  Object object;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map)) {
    *problem = dlerror();
    return 0;
  }
  object.name = map->l_name, object.base = map->l_addr;
  hooked_base = base_of(map->l_ld);
  dl_iterate_phdr(describe, &object);
  const auto wanted = functions_by_name();
  int n_hooked = 0;
  const int n_slots = visit_slots(object, [&](const char* name, void** slot) {
    auto found = wanted.find(name);
    if (found == wanted.end()) return;
    const Function& function = *found->second;
    void* there = *slot;
    const bool served = is_served(name);
    if (there && NextFunction::preloaded && NextFunction::is_preloads(there)) {
      // An empty slot tells mpi4py that MPI lacks the function.
      if (!served && !function.next->exists()) write(object, slot, nullptr);
      n_hooked++;
      return;
    }
    if (!is_hooked(name) || (!there && !served)) return;
    n_hooked++;
    if (there == function.function) return;
    // An unresolved slot points to the resolver, which would write to the slot again.
    if (object.contains(there)) there = dlsym(handle, name);
    if (there && there != function.function) function.next->set(there);
    write(object, slot, function.function);
  });
  if (!n_hooked) {
    *problem = object.name + " has " + std::to_string(n_slots) + " slots of functions, and none of MPI's";
  }
  return n_hooked;
}

void hook_caller(const void* caller) {
  Dl_info info;
  std::string problem;
  if (!dladdr(caller, &info) || !info.dli_fname) return;
  void* object = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  if (!object) return;
  hook(object, &problem);
  dlclose(object);
}

namespace {

// True for a path of Open MPI's Fortran libraries. The library for `use mpi_f08` calls the one for mpif.h.
bool is_of_fortran(const char* path) {
  return path && (strstr(path, "libmpi_mpifh") || strstr(path, "libmpi_usempif08"));
}

// The loaded Fortran libraries; empty if the loader's count of loaded objects is still `n_before`.
struct Search {
  unsigned long long n_before, n_loaded;
  std::vector<Object> found;
};

int search(dl_phdr_info* info, size_t size, void* given) {
  auto search = static_cast<Search*>(given);
  search->n_loaded = info->dlpi_adds;
  if (search->n_loaded == search->n_before) return 1;
  if (!is_of_fortran(info->dlpi_name)) return 0;
  Object& object = search->found.emplace_back();
  object.base = info->dlpi_addr;
  describe(info, size, &object);
  return 0;
}

// Prints the warning once, and on one rank only.
void say_not_served() {
  static std::atomic<bool> said{false};
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  if (said.exchange(true) || (rank && strcmp(rank, "0"))) return;
  fprintf(stderr, "compcoll: calls from Fortran are not accelerated with Open MPI 5 and later\n");
}

}  // namespace

void hook_fortran() {
  static std::atomic<unsigned long long> n_loaded{0};
  Search all{n_loaded, 0, {}};
  dl_iterate_phdr(search, &all);
  n_loaded = all.n_loaded;
  if (all.found.empty()) return;
  // From Open MPI 5 on, some Fortran functions write to MPI's own request after the call.
  if (library_symbol("PMPI_Alltoall_init")) return say_not_served();
  const auto wanted = functions_by_name();
  for (const Object& object : all.found) {
    visit_slots(object, [&](const char* name, void** slot) {
      auto found = name[0] == 'P' ? wanted.find(name + 1) : wanted.end();
      if (found != wanted.end()) write(object, slot, found->second->function);
    });
  }
}

const void* caller_beyond_fortran(const void* caller) {
  auto is_of_program = [](const void* address) {
    Dl_info info;
    return !dladdr(address, &info) || !is_of_fortran(info.dli_fname);
  };
  if (is_of_program(caller)) return caller;
  void* frames[64];
  void** const end = frames + backtrace(frames, 64);
  void** const found = std::find_if(std::find(frames, end, caller), end, is_of_program);
  return found == end ? caller : *found;
}

}  // namespace layer
}  // namespace compcoll
