// Waits and tests of requests, some of which may be the layer's.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "errors.h"
#include "entry.h"
#include "requests.h"
#include "notices.h"

namespace compcoll {
namespace layer {
namespace {

// Statuses of a call, with an error each: of all requests, or of those at `indices`.
struct Statuses {
  Word array = 0;
  const int* n = nullptr;
  const int* indices = nullptr;

  int count() const { return !array || array == library().ignored_status ? 0 : std::max(*n, 0); }
  char* at(int k) const { return reinterpret_cast<char*>(array) + size_t(k) * library().status_nbytes; }
  int error(int k) const {
    int code;
    memcpy(&code, at(k) + library().status_error_offset, sizeof code);
    return code;
  }
  void put(int k, int code) const { memcpy(at(k) + library().status_error_offset, &code, sizeof code); }
};

// The program's requests, in which those of started calls replace their stand-ins. Entries are looked up
// before MPI is called, as MPI may then reuse the handles.
class RequestSet {
 public:
  RequestSet(Word requests, int n) : given_(reinterpret_cast<char*>(requests)) {
    if (given_ && n > 0) known_ = find_requests(given_, size_t(n));
    for (const KnownRequest& one : known_) {
      if (one.entry && one.entry->operation) operations_.push_back(one.entry->operation.get());
      if (!one.persistent) continue;
      if (copy_.empty()) copy_.assign(given_, given_ + size_t(n) * width());
      library().put_handle(one.handle, copy_.data() + one.index * width());
    }
  }

  bool any() const { return !known_.empty(); }
  // The requests that MPI gets.
  Word requests() const { return reinterpret_cast<Word>(copy_.empty() ? given_ : copy_.data()); }

  // Completes every operation that can complete.
  void step() {
    ReleaseGil released_gil;
    the_engine().progress().step_all();
  }
  // Progresses until all operations of the layer are complete.
  void wait_all() {
    auto ended = [](const auto& each) { return each->ended(); };
    wait_until([&] { return std::all_of(operations_.begin(), operations_.end(), ended); });
  }
  // Progresses until MPI's `test` finds a completed request, the layer's or another.
  void wait_until(const std::function<bool()>& test) {
    ReleaseGil released_gil;
    the_engine().progress().wait(operations_, test, std::numeric_limits<double>::infinity(),
                                 [] { return false; });
  }

  // Concludes calls whose requests MPI has made null, after it has returned `error`. Returns the program's
  // code.
  int conclude(int error, const Statuses& statuses = {}) {
    take_over();
    const int n = statuses.count(), *const indices = statuses.indices;
    int first = 0, n_unset = error ? 0 : n;  // statuses in which MPI has set no error
    for (const KnownRequest& one : known_) {
      const int code = one.is_complete ? end(one) : 0;
      if (!code) continue;
      const auto place =
          indices ? std::find(indices, indices + n, int(one.index)) - indices : int64_t(one.index);
      while (n_unset > 0) statuses.put(--n_unset, 0);
      if (place < n) statuses.put(int(place), code);
      if (!first) first = raise(*one.entry->operation->comm, code);
    }
    return error ? error : first && n ? library().in_status : first;
  }

 private:
  static size_t width() { return library().handle_nbytes(); }

  // Copies the requests back to the program's array; stand-ins stay.
  void take_over() {
    char* const now = copy_.empty() ? given_ : copy_.data();
    for (KnownRequest& one : known_) {
      char* const place = now + one.index * width();
      one.is_complete = library().handle_at(place) == library().request_null;
      if (one.persistent) memcpy(place, given_ + one.index * width(), width());
    }
    if (!copy_.empty()) memcpy(given_, now, copy_.size());
  }

  // Ends a call whose request is complete; its code.
  static int end(const KnownRequest& one) {
    if (one.persistent) one.persistent->started = 0;
    if (!one.entry) return 0;
    const auto& operation = one.entry->operation;
    const int code = operation ? operation->conclude_once() : 0;
    complete_record(one.entry, code, operation ? operation->outcome() : nullptr);
    return code;
  }

  char* const given_;
  std::vector<char> copy_;
  std::vector<KnownRequest> known_;
  engine::PendingTasks operations_;
};

// Calls `ours` if the layer knows any of the requests, else `mpi`.
template <class Mpi, class Ours>
COMPCOLL_INLINE int with_requests(Word requests, int n, Mpi&& mpi, Ours&& ours) {
  if (!any_requests()) return mpi(requests);
  return guarded(library().comm_world, [&] {
    RequestSet set(requests, n);
    return set.any() ? ours(set) : mpi(requests);
  });
}

// Lets MPI complete requests, after the layer's have been waited for or have made progress.
template <class Mpi>
COMPCOLL_INLINE int complete(Word requests, int n, void (RequestSet::*progress)(), const Statuses& statuses,
                             Mpi&& mpi) {
  return with_requests(requests, n, mpi, [&](RequestSet& set) {
    (set.*progress)();
    return set.conclude(mpi(set.requests()), statuses);
  });
}

// Calls MPI for requests that stay as they are, after the layer's have made progress.
template <class Mpi>
COMPCOLL_INLINE int look_at(Word requests, int n, Mpi&& mpi) {
  return with_requests(requests, n, mpi, [&](RequestSet& set) {
    set.step();
    return mpi(set.requests());
  });
}

// Lets MPI complete one request, with a status of the layer's if the program ignores it.
template <class Function>
int complete_one(Word status, Function&& next) {
  alignas(8) char own[most_nbytes_of_status];
  if (status == library().ignored_status) status = reinterpret_cast<Word>(own);
  const int error = next(status);
  if (error) fail_if_truncated(error, reinterpret_cast<void*>(status));
  return error;
}

// Returns MPI's code for several requests, after it has handled truncated messages.
int check_many(int error, const Statuses& statuses) {
  if (!error) return 0;
  const int n = error == library().in_status ? statuses.count() : 0;
  if (!n) fail_if_truncated(error, nullptr);
  for (int k = 0; k < n; k++)
    if (int its = statuses.error(k)) fail_if_truncated(its, statuses.at(k));
  return error;
}

}  // namespace
}  // namespace layer
}  // namespace compcoll

using namespace compcoll::layer;

C_FUNCTION(Wait, (Word request, Word status)) {
  return complete(request, 1, &RequestSet::wait_all, {}, [&](Word request) {
    return complete_one(status, [&](Word status) { return next_Wait(request, status); });
  });
}

C_FUNCTION(Test, (Word request, Word flag, Word status)) {
  return complete(request, 1, &RequestSet::step, {}, [&](Word request) {
    return complete_one(status, [&](Word status) { return next_Test(request, flag, status); });
  });
}

C_FUNCTION(Waitall, (int n, Word requests, Word array)) {
  const Statuses statuses = {array, &n};
  return complete(requests, n, &RequestSet::wait_all, statuses,
                  [&](Word requests) { return check_many(next_Waitall(n, requests, array), statuses); });
}

C_FUNCTION(Testall, (int n, Word requests, Word flag, Word array)) {
  const Statuses statuses = {array, &n};
  return complete(requests, n, &RequestSet::step, statuses, [&](Word requests) {
    return check_many(next_Testall(n, requests, flag, array), statuses);
  });
}

C_FUNCTION(Testany, (int n, Word requests, Word index, Word flag, Word status)) {
  return complete(requests, n, &RequestSet::step, {}, [&](Word requests) {
    return complete_one(status, [&](Word status) { return next_Testany(n, requests, index, flag, status); });
  });
}

C_FUNCTION(Testsome, (int n, Word requests, int* n_done, int* indices, Word array)) {
  const Statuses statuses = {array, n_done, indices};
  return complete(requests, n, &RequestSet::step, statuses, [&](Word requests) {
    return check_many(next_Testsome(n, requests, n_done, indices, array), statuses);
  });
}

C_FUNCTION(Waitany, (int n, Word requests, Word index, Word status)) {
  auto mpi = [&](Word requests) {
    return complete_one(status, [&](Word status) { return next_Waitany(n, requests, index, status); });
  };
  return with_requests(requests, n, mpi, [&](RequestSet& set) {
    int error = 0, is_done = 0;
    set.step();
    set.wait_until([&] {
      error = complete_one(
          status, [&](Word status) { return next_Testany(n, set.requests(), index, &is_done, status); });
      return error || is_done;
    });
    return set.conclude(error);
  });
}

C_FUNCTION(Waitsome, (int n, Word requests, int* n_done, int* indices, Word array)) {
  const Statuses statuses = {array, n_done, indices};
  auto mpi = [&](Word requests) {
    return check_many(next_Waitsome(n, requests, n_done, indices, array), statuses);
  };
  return with_requests(requests, n, mpi, [&](RequestSet& set) {
    int error = 0;
    set.step();
    set.wait_until([&] {
      error = check_many(next_Testsome(n, set.requests(), n_done, indices, array), statuses);
      return error || *n_done;
    });
    return set.conclude(error, statuses);
  });
}

C_FUNCTION(Cancel, (Word request)) {
  return look_at(request, 1, [](Word request) { return next_Cancel(request); });
}

C_FUNCTION(Request_get_status, (Word request, Word flag, Word status)) {
  Word place;
  library().put_handle(library().handle_of(request), &place);
  return look_at(reinterpret_cast<Word>(&place), 1, [&](Word place) {
    return next_Request_get_status(library().handle_at(reinterpret_cast<void*>(place)), flag, status);
  });
}

C_FUNCTION(Request_get_status_all, (int n, Word requests, Word flag, Word statuses)) {
  auto mpi = [&](Word requests) { return next_Request_get_status_all(n, requests, flag, statuses); };
  return look_at(requests, n, mpi);
}

C_FUNCTION(Request_get_status_any, (int n, Word requests, Word index, Word flag, Word status)) {
  auto mpi = [&](Word requests) { return next_Request_get_status_any(n, requests, index, flag, status); };
  return look_at(requests, n, mpi);
}

C_FUNCTION(Request_get_status_some, (int n, Word requests, Word n_done, Word indices, Word statuses)) {
  auto mpi = [&](Word requests) {
    return next_Request_get_status_some(n, requests, n_done, indices, statuses);
  };
  return look_at(requests, n, mpi);
}
