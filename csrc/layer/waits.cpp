// Waits for requests, and tests of them, of which some may be the layer's.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "errors.h"
#include "functions.h"
#include "requests.h"
#include "streams.h"

namespace compcoll {
namespace layer {
namespace {

// Requests that a program gave, with those of started calls in the places of what stands for them.
class RequestArray {
 public:
  RequestArray(Word array, int64_t n)
      : given_(reinterpret_cast<char*>(array)), n_(size_t(std::max<int64_t>(n, 0))) {
    if (!any_requests() || !array) return;
    for (size_t i = 0; i < n_; i++) {
      Word handle = library().handle_at(given_ + i * width());
      auto prepared = prepared_of(handle);
      if (prepared) handle = prepared->started;
      auto pending = handle ? pending_of(handle) : nullptr;
      if (prepared && prepared->started) {
        if (copy_.empty()) copy_.assign(given_, given_ + n_ * width());
        library().put_handle(handle, copy_.data() + i * width());
      }
      const bool recorded = has_record(handle);
      if (pending || recorded || (prepared && prepared->started))
        ours_.push_back({i, handle, pending, prepared, recorded, false});
    }
  }

  bool any_of_ours() const { return !ours_.empty(); }
  Word get() const { return reinterpret_cast<Word>(copy_.empty() ? given_ : copy_.data()); }

  // Has MPI progress what is waited for, until all of ours are complete.
  void finish_all() {
    const engine::PendingTasks all = pending();
    wait_for(all, [&] {
      return std::all_of(all.begin(), all.end(), [](const auto& each) { return each->ended(); });
    });
  }

  // Until MPI's test of all of them says that some are complete, ours or not.
  void finish_any(const std::function<bool()>& test) { wait_for(pending(), test); }

  static void step() {
    Unlocked unlocked;
    the_engine().progress().step_all();
  }

  // Takes over what MPI has made of the requests, and of those of ours that are complete their errors:
  // `place_error` is told of the number of each and its code. The first code.
  template <class PlaceError>
  int give_back(PlaceError&& place_error) {
    const Word null = library().request_null;
    int first = 0;
    const char* now = reinterpret_cast<const char*>(get());
    for (Ours& one : ours_) one.complete = library().handle_at(now + one.index * width()) == null;
    if (!copy_.empty()) {
      for (size_t i = 0; i < n_; i++)
        if (!stands_in(i)) memcpy(given_ + i * width(), copy_.data() + i * width(), width());
    }
    for (Ours& one : ours_) {
      if (!one.complete) continue;
      if (one.prepared) one.prepared->started = 0;
      int code = one.pending ? one.pending->settle() : 0;
      if (one.recorded) close_record(one.handle, one.pending, code);
      if (!code) continue;
      place_error(one.index, code);
      if (!first) first = raise(*one.pending->comm, code);
    }
    return first;
  }

 private:
  struct Ours {
    size_t index;
    Word handle;
    std::shared_ptr<PendingOperation> pending;
    std::shared_ptr<Prepared> prepared;
    bool recorded, complete;
  };

  bool stands_in(size_t i) const {
    return std::any_of(ours_.begin(), ours_.end(),
                       [i](const Ours& one) { return one.index == i && one.prepared; });
  }
  static size_t width() { return library().handle_nbytes(); }

  engine::PendingTasks pending() const {
    engine::PendingTasks all;
    for (const Ours& one : ours_)
      if (one.pending) all.push_back(one.pending.get());
    return all;
  }
  static void wait_for(const engine::PendingTasks& waited, const std::function<bool()>& reached) {
    Unlocked unlocked;
    the_engine().progress().wait(waited, reached, std::numeric_limits<double>::infinity(),
                                 [] { return false; });
  }

  char* const given_;
  const size_t n_;
  std::vector<char> copy_;
  std::vector<Ours> ours_;
};

// Puts a code into a status of an array, unless that is ignored.
void put_error(Word statuses, size_t k, int code) {
  const Library& mpi = library();
  if (statuses == mpi.ignored_status || !statuses) return;
  memcpy(reinterpret_cast<char*>(statuses) + k * mpi.status_nbytes + mpi.status_error_offset, &code,
         sizeof code);
}

// The errors of several requests, which have codes in their statuses where there are any.
class Several {
 public:
  Several(Word statuses, int n, int error) : statuses_(statuses), error_(error) {
    ignored_ = statuses == library().ignored_status || !statuses;
    n_unset_ = ignored_ || error ? 0 : size_t(std::max(n, 0));
  }
  void operator()(size_t k, int code) {
    if (ignored_) return;
    while (n_unset_) put_error(statuses_, --n_unset_, 0);
    put_error(statuses_, k, code);
  }
  // What the call returns: MPI's own error, that of all statuses, or of the first request where these are
  // ignored.
  int result(int first) const { return error_ ? error_ : first && !ignored_ ? library().in_status : first; }

 private:
  const Word statuses_;
  const int error_;
  bool ignored_;
  size_t n_unset_;  // statuses without a code, the first ones
};

using Plain = std::function<int(Word requests)>;
// A test of several requests in the place of a wait for some of them, and whether any are complete.
using Test = std::function<int(Word requests, bool* done)>;

int wait_one(Word request, const Plain& plain) {
  return guarded(library().comm_world, [&] {
    RequestArray array(request, 1);
    array.finish_all();
    int error = plain(array.get()), first = array.give_back([](size_t, int) {});
    return error ? error : first;
  });
}

int test_one(Word request, const Plain& plain) {
  return guarded(library().comm_world, [&] {
    RequestArray array(request, 1);
    if (array.any_of_ours()) RequestArray::step();
    int error = plain(array.get()), first = array.give_back([](size_t, int) {});
    return error ? error : first;
  });
}

enum class Kind { all, any, some };

// `statuses` of all have an error each; those of some in the order of `indices`, `n_complete` of them.
int wait_for_many(Kind kind, bool waits, int n, Word requests, Word statuses, const int* indices,
                  const int* n_complete, const Plain& plain, const Test& test) {
  RequestArray array(requests, n);
  if (!array.any_of_ours()) return plain(requests);
  int error = 0;
  if (test) {
    RequestArray::step();  // of what is there, all is complete
    array.finish_any([&] {
      bool done = false;
      error = test(array.get(), &done);
      return done || error;
    });
  } else {
    if (waits) array.finish_all();
    else RequestArray::step();
    error = plain(array.get());
  }
  Several several(statuses, kind == Kind::some ? std::max(*n_complete, 0) : n, error);
  int first = array.give_back([&](size_t index, int code) {
    if (kind == Kind::any) return;
    if (kind == Kind::all) return several(index, code);
    for (int k = 0; k < *n_complete; k++)
      if (size_t(indices[k]) == index) several(size_t(k), code);
  });
  return kind == Kind::any ? (error ? error : first) : several.result(first);
}

int wait_many(Kind kind, bool waits, int n, Word requests, Word statuses, const int* indices,
              const int* n_complete, const Plain& plain, const Test& test = nullptr) {
  return guarded(library().comm_world, [&] {
    return wait_for_many(kind, waits, n, requests, statuses, indices, n_complete, plain, test);
  });
}

// Has MPI complete one request, with a status of the layer's if the program ignores it.
template <class Next>
int complete_one(Word status, Next&& next) {
  alignas(8) char own[most_nbytes_of_status];
  if (status == library().ignored_status) status = reinterpret_cast<Word>(own);
  const int error = next(status);
  if (error) fail_if_truncated(error, reinterpret_cast<void*>(status));
  return error;
}

// What MPI returns for `*n` requests, which have a status each unless the program ignores them.
template <class N>
int check_many(int error, Word statuses, const N* n) {
  const Library& mpi = library();
  if (!error) return 0;
  const bool ignored = statuses == mpi.ignored_status || !statuses;
  if (error != mpi.in_status || ignored) fail_if_truncated(error, nullptr);
  for (int k = 0; error == mpi.in_status && !ignored && k < int(*n); k++) {
    const char* status = reinterpret_cast<const char*>(statuses) + size_t(k) * mpi.status_nbytes;
    int its = 0;
    memcpy(&its, status + mpi.status_error_offset, sizeof its);
    if (its) fail_if_truncated(its, status);
  }
  return error;
}

}  // namespace
}  // namespace layer
}  // namespace compcoll

using namespace compcoll::layer;

#define INT(word) reinterpret_cast<int*>(word)

#define C_ONE(n, name, act, status)                                                 \
  C_FUNCTION(name, (C_##n)) {                                                       \
    auto plain = [&](Word a) {                                                      \
      return complete_one(status, [&](Word status) { return next_##name(A_##n); }); \
    };                                                                              \
    return any_requests() ? act(a, plain) : plain(a);                               \
  }

#define C_MANY(n, name, kind, waits, statuses, indices, n_complete, checked)                  \
  C_FUNCTION(name, (C_##n)) {                                                                 \
    auto plain = [&](Word b) { return checked; };                                             \
    if (!any_requests()) return plain(b);                                                     \
    return wait_many(Kind::kind, waits, int32_t(a), b, statuses, indices, n_complete, plain); \
  }

C_ONE(2, Wait, wait_one, b)
C_ONE(3, Test, test_one, c)
C_MANY(3, Waitall, all, true, c, nullptr, nullptr, check_many(next_Waitall(A_3), c, &a))
C_MANY(4, Testall, all, false, d, nullptr, nullptr, check_many(next_Testall(A_4), d, &a))
C_MANY(5, Testany, any, false, e, INT(c), nullptr, complete_one(e, [&](Word e) { return next_Testany(A_5); }))
C_MANY(5, Testsome, some, false, e, INT(d), INT(c), check_many(next_Testsome(A_5), e, INT(c)))
C_MANY(4, Request_get_status_all, all, false, d, nullptr, nullptr, next_Request_get_status_all(A_4))
C_MANY(5, Request_get_status_any, any, false, e, nullptr, nullptr, next_Request_get_status_any(A_5))
C_MANY(5, Request_get_status_some, some, false, e, INT(d), INT(c), next_Request_get_status_some(A_5))

C_FUNCTION(Cancel, (C_1)) {
  auto plain = [&](Word a) { return next_Cancel(a); };
  return any_requests() ? test_one(a, plain) : plain(a);
}

C_FUNCTION(Waitany, (C_4)) {
  auto plain = [&](Word b) { return complete_one(d, [&](Word d) { return next_Waitany(A_4); }); };
  if (!any_requests()) return plain(b);
  auto test = [&](Word b, bool* done) {
    int flag = 0;
    int error =
        complete_one(d, [&](Word d) { return next_Testany(a, b, c, reinterpret_cast<Word>(&flag), d); });
    *done = flag;
    return error;
  };
  return wait_many(Kind::any, true, int32_t(a), b, d, nullptr, nullptr, plain, test);
}

C_FUNCTION(Waitsome, (C_5)) {
  auto plain = [&](Word b) { return check_many(next_Waitsome(A_5), e, INT(c)); };
  if (!any_requests()) return plain(b);
  auto test = [&](Word b, bool* done) {
    int error = check_many(next_Testsome(A_5), e, INT(c));
    *done = *INT(c) != 0;
    return error;
  };
  return wait_many(Kind::some, true, int32_t(a), b, e, INT(d), INT(c), plain, test);
}

C_FUNCTION(Request_get_status, (Word request, Word flag, Word status)) {
  if (any_requests()) {
    if (auto prepared = prepared_of(library().handle_of(request)); prepared && prepared->started)
      request = prepared->started;
    if (pending_of(library().handle_of(request))) RequestArray::step();
  }
  return next_Request_get_status(request, flag, status);
}
