// The functions that make and free communicators, and others that wait for ranks.
#include "check.h"
#include "entry.h"
#include "hook.h"

using namespace compcoll::layer;

// -- functions that make communicators, and mark them if their parents are marked

namespace {

// Marks a communicator if its parent is marked; MPI's error code, on which the communicator is freed.
int inherit_mark(Word parent, void* place, bool same_ranks) {
  static MpiFunction comm_free("PMPI_Comm_free");
  const Word made = library().handle_at(place);
  Comm* comm = is_ours() && made != library().comm_null ? find(parent) : nullptr;
  if (!comm) return 0;
  return guarded(comm->handle, [&] {
    if (NextFunction::preloaded) hook_fortran();  // a Fortran library may have been loaded meanwhile
    const int error = inherit(*comm, made, same_ranks);
    if (error) comm_free.call(place);
    return error;
  });
}

// True if a communicator must not be freed, since other wrappers use it. False after an exception, so that
// MPI frees it.
bool stays(void* comm) {
  if (!is_ours() || library().status_nbytes == 0) return false;
  try {
    return before_free(library().handle_at(comm));
  } catch (...) { return false; }
}

}  // namespace

// mpi4py holds the GIL when it duplicates a communicator for its own sums of objects. Such a duplicate is not
// marked.
#define C_MAKES(n, name, same_ranks)                                          \
  C_FUNCTION(name, (C_##n, void* made)) {                                     \
    int error = check_named(a, #name);                                        \
    if (error) return error;                                                  \
    bool hidden = false;                                                      \
    {                                                                         \
      ReleaseGil released_gil;                                                \
      hidden = same_ranks && released_gil.had_lock() && is_of_hooked(CALLER); \
      error = next_##name(A_##n, made);                                       \
    }                                                                         \
    return error || hidden ? error : inherit_mark(a, made, same_ranks);       \
  }

// clang-format off
C_MAKES(1, Comm_dup, true)
C_MAKES(2, Comm_dup_with_info, true)
C_MAKES(3, Comm_split, false)
C_MAKES(4, Comm_split_type, false)
C_MAKES(2, Comm_create, false)
C_MAKES(3, Comm_create_group, false)
C_MAKES(5, Cart_create, false)
C_MAKES(2, Cart_sub, false)
C_MAKES(5, Graph_create, false)
C_MAKES(8, Dist_graph_create, false)
C_MAKES(9, Dist_graph_create_adjacent, false)
// clang-format on

#define C_FREES(name)                                                            \
  C_FUNCTION(name, (void* comm)) {                                               \
    const Word handle = is_ours() ? library().handle_at(comm) : 0;               \
    const bool kept = stays(comm);                                               \
    /* Objects of the communicator are null by now, and this may be one. */      \
    if (handle) library().put_handle(kept ? library().comm_null : handle, comm); \
    return kept ? 0 : next_##name(comm);                                         \
  }

C_FREES(Comm_free)
C_FREES(Comm_disconnect)

// -- other calls that wait for ranks, which release the GIL of a Python program

#define C_WAITS(n, name, ...) \
  C_FUNCTION(name, (C_##n)) { return next_##name(A_##n); }

// clang-format off
C_WAITS(6, Intercomm_create)
C_WAITS(3, Intercomm_merge)
C_WAITS(6, Win_create)
C_WAITS(6, Win_allocate)
C_WAITS(6, Win_allocate_shared)
C_WAITS(1, Win_free)
C_WAITS(2, Win_fence)
C_WAITS(3, Win_start)
C_WAITS(1, Win_complete)
C_WAITS(1, Win_wait)
C_WAITS(4, Win_lock)
C_WAITS(2, Win_unlock)
C_WAITS(2, Win_flush)
C_WAITS(1, Win_flush_all)
C_WAITS(1, Win_unlock_all)
// clang-format on
