#include "notices.h"

#include <algorithm>

#include "engine/clock.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction isend("PMPI_Isend"), test("PMPI_Test"), improbe("PMPI_Improbe"), mrecv("PMPI_Mrecv"),
    error_class("PMPI_Error_class");

// Seconds that a notice may arrive after its message, though it was sent before; seconds until a message
// without a notice is forgotten.
constexpr double late_seconds = 50e-3, forgotten_seconds = 60;
constexpr int last_looks = 4;
// Seconds that a message's chunks wait for a message from their receiver: for each byte, and at most.
constexpr double holding = 0.1e-9, most_holding = 5e-4;
// Number of pending notices, of sent or of received messages, from which on they are completed.
constexpr size_t most_late = 32;

}  // namespace

engine::Tags Notices::reserve(uint64_t n) {
  n = std::max<uint64_t>(1, std::min(n, uint64_t(n_)));
  std::lock_guard<std::mutex> lock(mutex_);
  if (used_ + n > uint64_t(n_)) used_ = 0;
  const engine::Tags tags = {first_ + int(used_), int(n)};
  used_ += n;
  return tags;
}

void Notices::announce(int dest, const Notice& notice) {
  std::lock_guard<std::mutex> lock(mutex_);
  Sent& one = *sent_.emplace_back(std::make_unique<Sent>());
  one.notice = notice, one.request = library().request_null;
  isend.call(&one.notice, int(sizeof notice), library().byte, dest, tag_, frames->handle(), &one.request);
  int done = 1;
  while (sent_.size() > most_late && done) {
    test.call(&sent_.front()->request, &done, library().ignored_status);
    if (done) sent_.pop_front();
  }
}

void Notices::drop(int source, int tag, int64_t length, uint32_t serial) {
  std::lock_guard<std::mutex> lock(mutex_);
  unannounced_.erase(
      {source, tag, length});  // else a thread that has just probed it would take it for uncompressed
  if (known_.erase({source, serial})) return;
  late_[{source, serial}] = true;
  if (late_.size() >= most_late) collect();
}

// Requires the lock.
void Notices::collect() {
  const Library& mpi = library();
  alignas(8) char status[most_nbytes_of_status];
  for (int found = 1; found;) {
    Word message = 0;
    Notice notice;
    if (improbe.call(mpi.any_source, tag_, frames->handle(), &found, &message, status) || !found) return;
    mrecv.call(&notice, int(sizeof notice), mpi.byte, &message, status);
    const std::pair<int, uint32_t> key = {source_of(status), notice.opening.serial};
    if (!late_.erase(key)) known_[key] = {notice};
  }
}

bool Notices::expects(int source, int tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  collect();
  return std::any_of(known_.begin(), known_.end(), [&](const auto& one) {
    return (source == library().any_source || source == one.first.first) &&
           (tag == library().any_tag || tag == one.second.tag);
  });
}

bool Notices::awaited(int source, int tag) {
  return std::any_of(awaiting_.begin(), awaiting_.end(), [&](const auto& one) {
    const auto [its_source, its_tag, answers] = one.second;
    return (its_source == source || its_source == library().any_source) &&
           (its_tag == tag || its_tag == library().any_tag);
  });
}

// If several notices match, returns the size of the earliest. If a posted receive may be receiving that
// message already, the size is known only if all of them have the same.
int64_t Notices::nbytes_of(int source, int tag, int64_t length) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool arriving = awaited(source, tag);  // checked first: the receive may end before the next line
  collect();
  int64_t found = -1;
  auto one = known_.lower_bound({source, 0});
  for (; one != known_.end() && one->first.first == source; ++one) {
    const Notice& notice = one->second;
    const int64_t nbytes = int64_t(notice.opening.n * notice.opening.itemsize);
    if (notice.tag != tag || notice.length != length) continue;
    if (found < 0) found = nbytes;
    if (!arriving) break;
    if (nbytes != found) return -1;
  }
  if (found >= 0) return found;
  // A message that has had no notice for `late_seconds` is not compressed.
  const double now = engine::now();
  for (auto old = unannounced_.begin(); old != unannounced_.end();)
    old = now - old->second.second > forgotten_seconds ? unannounced_.erase(old) : std::next(old);
  auto& [since, seen] =
      unannounced_.emplace(std::make_tuple(source, tag, length), std::make_pair(now, now)).first->second;
  seen = now;
  if (now - since <= late_seconds) return -1;
  // A receive may have taken the message that was probed first: looks for the notice of this later one.
  for (int i = 0; i < last_looks; i++) collect();
  one = known_.lower_bound({source, 0});
  for (; one != known_.end() && one->first.first == source; ++one)
    if (one->second.tag == tag && one->second.length == length) return -1;
  return length;
}

void Notices::await(const void* receive, int source, int tag, uint64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  Awaited& awaited = awaiting_[receive] = {source, tag, nbytes};
  for (const Held& held : held_) pair(held, &awaited);
}

void Notices::is_over(const void* receive) {
  std::lock_guard<std::mutex> lock(mutex_);
  awaiting_.erase(receive);
}

// At most one held message waits for each posted receive, because that receive may never complete.
void Notices::pair(const Held& held, Awaited* awaited) {
  if (held.dest != awaited->source || !awaited->answers) return;
  const auto chunks = held.chunks.lock();
  const double seconds = holding * double(std::min(held.nbytes, awaited->answers));
  if (chunks && chunks->hold(std::min(seconds, most_holding))) awaited->answers = 0;
}

void Notices::hold(int dest, uint64_t nbytes, const std::shared_ptr<engine::Run>& chunks) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto ended = [](const Held& one) { return one.chunks.expired(); };
  held_.erase(std::remove_if(held_.begin(), held_.end(), ended), held_.end());
  held_.push_back({dest, nbytes, chunks});
  for (auto& [receive, awaited] : awaiting_) pair(held_.back(), &awaited);
}

void Notices::announce_held(int source) {
  std::vector<Held> some;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto others = [source](const Held& one) { return one.dest != source; };
    const auto first = std::stable_partition(held_.begin(), held_.end(), others);
    some.assign(first, held_.end());
    held_.erase(first, held_.end());
  }
  const double end = engine::now() + engine::Run::announcing;  // for all of them together
  for (const Held& one : some)
    if (const auto chunks = one.chunks.lock()) chunks->announce(end - engine::now());
}

// Requires the lock.
bool Notices::exchanged() {
  collect();
  for (int done = 1; !sent_.empty() && done;) {
    test.call(&sent_.front()->request, &done, library().ignored_status);
    if (done) sent_.pop_front();
  }
  return sent_.empty() && late_.empty();
}

bool Notices::up_to_date() {
  std::lock_guard<std::mutex> lock(mutex_);
  return exchanged();
}

bool Notices::is_drained() {
  std::lock_guard<std::mutex> lock(mutex_);
  return exchanged() && known_.empty() && awaiting_.empty();
}

// -- truncated messages

void fail_if_truncated(int error, const void* status, Comm* comm) {
  const Library& mpi = library();
  int its_class = 0;
  if (error_class.call(Word(int64_t(error)), &its_class)) return;
  if (its_class != mpi.err_truncate && (status || its_class != mpi.in_status)) return;
  const int source = status ? source_of(status) : mpi.any_source, tag = status ? tag_of(status) : mpi.any_tag;
  ReleaseGil released_gil;
  const auto some = comm ? std::vector{comm->shared_from_this()} : with_receives_by_mpi();
  const double until = engine::now() + late_seconds;
  do {
    for (const auto& one : some)
      if (one->notices && one->notices->expects(source, tag))
        one->fail("a compressed message did not fit its receive, and its other chunks were not received");
  } while (engine::now() < until);
}

}  // namespace layer
}  // namespace compcoll
