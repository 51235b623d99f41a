// Persistent requests: a program starts and frees what stands for a call that Python prepared, and waits for the
// request of the call that was started.
#include "requests.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "names.h"

namespace compcoll {
namespace preload {
namespace {

struct Prepared {
  void* object;  // Python's
  bool mpi;  // whether MPI carries it out
  Word started = 0;  // the request of the call under way
};

std::atomic<int> n_kept{0};
std::mutex mutex;

std::unordered_map<Word, Prepared>& kept() {
  static auto table = new std::unordered_map<Word, Prepared>;
  return *table;
}

// Of a call that Python carries out; nullptr of any other request.
Prepared* find_prepared(Word handle) {
  if (!n_kept.load(std::memory_order_relaxed)) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = kept().find(handle);
  return found == kept().end() || found->second.mpi ? nullptr : &found->second;
}

Own request_c2f("PMPI_Request_c2f"), request_f2c("PMPI_Request_f2c"), recv_init("PMPI_Recv_init");

// A request that is not active, and none of another call's.
Word make_stand_in() {
  const Library& mpi = library();
  const Word proc_null = Word(int64_t(mpi.proc_null));
  Word made = 0;
  recv_init.call(Word(0), Word(0), dispatch_if_loaded()->byte, proc_null, Word(0), mpi.comm_world, &made);
  return mpi.handle_of(made);
}

// Requests that a program gave, with those of started calls in the places of what stands for them.
class Requests {
 public:
  Requests(Convention convention, Word given, int64_t n)
      : convention_(convention), given_(reinterpret_cast<void*>(given)), n_(n) {
    if (!n_kept.load(std::memory_order_relaxed) || !given) return;
    for (int64_t i = 0; i < n; i++) {
      Prepared* prepared = find_prepared(request_at(convention, at(given_, i)));
      if (!prepared || !prepared->started) continue;
      if (copy_.empty()) {
        copy_.resize(size_t(n) * width());
        memcpy(copy_.data(), given_, copy_.size());
        prepared_.resize(size_t(n));
      }
      prepared_[size_t(i)] = prepared;
      give_request(convention, prepared->started, at(copy_.data(), i));
    }
  }

  Word get() { return reinterpret_cast<Word>(copy_.empty() ? given_ : copy_.data()); }

  // Takes over what MPI has made of them.
  void give_back() {
    if (copy_.empty()) return;
    const Word null = library().request_null;
    for (int64_t i = 0; i < n_; i++) {
      Prepared* prepared = prepared_[size_t(i)];
      if (!prepared) memcpy(at(given_, i), at(copy_.data(), i), width());
      else if (request_at(convention_, at(copy_.data(), i)) == null) prepared->started = 0;
    }
  }

 private:
  size_t width() const { return size_t(nbytes_of_handle(convention_)); }
  void* at(void* array, int64_t i) const { return static_cast<char*>(array) + size_t(i) * width(); }

  Convention convention_;
  void* given_;
  int64_t n_;
  std::vector<char> copy_;
  std::vector<Prepared*> prepared_;
};

int start(Convention convention, void* place, bool* ours) {
  Prepared* prepared = find_prepared(request_at(convention, place));
  *ours = prepared != nullptr;
  if (!prepared) return 0;
  Inside within;
  return dispatch_if_loaded()->start(prepared->object, &prepared->started);
}

// Forgets a request that is about to be freed.
void forget(Word handle) {
  if (!n_kept.load(std::memory_order_relaxed)) return;
  Prepared found;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto place = kept().find(handle);
    if (place == kept().end()) return;
    found = place->second;
    kept().erase(place);
    n_kept--;
  }
  Inside within;
  if (const Dispatch* python = dispatch_if_loaded()) python->free(found.object, found.started);
}

}  // namespace

Word keep(void* prepared, Word mpi) {
  Word handle = mpi ? library().handle_of(mpi) : make_stand_in();
  std::lock_guard<std::mutex> lock(mutex);
  kept()[handle] = {prepared, mpi != 0};
  n_kept++;
  return handle;
}

int nbytes_of_handle(Convention convention) {
  return convention == Convention::fortran || library().abi == Abi::mpich ? 4 : 8;
}

void give_handle(Convention convention, Word handle, Own& to_fortran, void* place) {
  if (convention == Convention::fortran) *static_cast<int*>(place) = to_fortran.call(handle);
  else if (library().abi == Abi::mpich) *static_cast<uint32_t*>(place) = uint32_t(handle);
  else *static_cast<Word*>(place) = handle;
}

Word handle_at(Convention convention, Own& from_fortran, const void* place) {
  if (convention == Convention::fortran) {
    return library().handle_of(from_fortran.call<Word>(*static_cast<const int*>(place)));
  }
  return library().abi == Abi::mpich ? *static_cast<const uint32_t*>(place)
                                     : *static_cast<const Word*>(place);
}

void give_request(Convention convention, Word handle, void* place) {
  give_handle(convention, handle, request_c2f, place);
}

Word request_at(Convention convention, const void* place) {
  return handle_at(convention, request_f2c, place);
}

}  // namespace preload
}  // namespace compcoll

using namespace compcoll::preload;

// -- waits and tests: of one request, which comes first, or of many, of which the number comes first

#define C_WAITS(n, name, given, count)              \
  EXPORT int MPI_##name(C_##n) {                    \
    static Next next("MPI_" #name);                 \
    Requests requests(Convention::c, given, count); \
    given = requests.get();                         \
    int error = next(A_##n);                        \
    requests.give_back();                           \
    return error;                                   \
  }

#define FORTRAN_WAITS(n, symbol, given, count)                                          \
  EXPORT void symbol(C_##n, int* error) {                                               \
    static Next next(#symbol);                                                          \
    Requests requests(Convention::fortran, given, library().own_fortran() ? count : 0); \
    given = requests.get();                                                             \
    next(A_##n, error);                                                                 \
    requests.give_back();                                                               \
  }

#define FORTRAN_BOTH(n, name, given, count) \
  FORTRAN_WAITS(n, mpi_##name##_, given, count) FORTRAN_WAITS(n, mpi_##name##_f08_, given, count)
#define ONE(n, name, fortran) C_WAITS(n, name, a, 1) FORTRAN_BOTH(n, fortran, a, 1)
#define MANY(n, name, fortran) \
  C_WAITS(n, name, b, int32_t(a)) FORTRAN_BOTH(n, fortran, b, *reinterpret_cast<int*>(a))

// clang-format off
ONE(2, Wait, wait)
ONE(3, Test, test)
ONE(1, Cancel, cancel)
MANY(3, Waitall, waitall)
MANY(4, Waitany, waitany)
MANY(5, Waitsome, waitsome)
MANY(4, Testall, testall)
MANY(5, Testany, testany)
MANY(5, Testsome, testsome)
FORTRAN_BOTH(3, request_get_status, a, 1)
// clang-format on

EXPORT int MPI_Request_get_status(Word request, Word flag, Word status) {
  static Next next("MPI_Request_get_status");
  Prepared* prepared = find_prepared(library().handle_of(request));
  return next(prepared && prepared->started ? prepared->started : request, flag, status);
}

// -- starts, and the end

EXPORT int MPI_Start(void* request) {
  static Next next("MPI_Start");
  bool ours;
  int error = start(Convention::c, request, &ours);
  return ours ? error : next(request);
}

EXPORT int MPI_Startall(Word n, char* requests) {
  static Next next("MPI_Startall");
  if (!n_kept.load(std::memory_order_relaxed)) return next(n, requests);
  int error = 0;
  for (int i = 0; i < int32_t(n) && !error; i++)
    error = MPI_Start(requests + i * nbytes_of_handle(Convention::c));
  return error;
}

EXPORT int MPI_Request_free(void* request) {
  static Next next("MPI_Request_free");
  forget(request_at(Convention::c, request));
  return next(request);
}

#define FORTRAN_STARTS(suffix)                                                             \
  EXPORT void mpi_start_##suffix(void* request, int* error) {                              \
    static Next next("mpi_start_" #suffix);                                                \
    bool ours = false;                                                                     \
    int result = library().own_fortran() ? start(Convention::fortran, request, &ours) : 0; \
    if (!ours) return void(next(request, error));                                          \
    if (error) *error = result;                                                            \
  }                                                                                        \
  EXPORT void mpi_startall_##suffix(int* n, int* requests, int* error) {                   \
    static Next next("mpi_startall_" #suffix);                                             \
    if (!library().own_fortran() || !n_kept) return void(next(n, requests, error));        \
    int result = 0;                                                                        \
    for (int i = 0; i < *n && !result; i++) mpi_start_##suffix(requests + i, &result);     \
    if (error) *error = result;                                                            \
  }                                                                                        \
  EXPORT void mpi_request_free_##suffix(void* request, int* error) {                       \
    static Next next("mpi_request_free_" #suffix);                                         \
    if (library().own_fortran()) forget(request_at(Convention::fortran, request));         \
    next(request, error);                                                                  \
  }

FORTRAN_STARTS()
FORTRAN_STARTS(f08_)
