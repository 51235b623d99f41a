#include "streams.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine.h"
#include "engine/clock.h"

namespace compcoll {
namespace layer {
namespace {

using engine::BlockRef;
using engine::NONE;
using engine::Op;
using engine::Schedule;

Own isend("PMPI_Isend"), test("PMPI_Test"), improbe("PMPI_Improbe"), mrecv("PMPI_Mrecv"),
    error_class("PMPI_Error_class");

// The most chunks whose schedule is kept: one takes some 200 bytes.
constexpr uint64_t most_kept = 64;
// Chunks are whole blocks of every codec.
constexpr uint64_t chunk_unit = 1024;
// Elements of a chunk that may come in another shape: compcoll/schedule/planes.py.
constexpr uint64_t most_whole = 1 << 18, most_large = 1 << 21;
// Seconds that a notice may arrive later than the message that it was sent before, and after which a message
// that had none is forgotten.
constexpr double late_seconds = 50e-3, forgotten_seconds = 60;
constexpr int last_looks = 4;
// Seconds for which a message waits for that of its receiver: for each byte, and at most.
constexpr double holding = 0.1e-9, most_holding = 5e-4;
// Notices of sent, and of received messages, that may wait to be completed.
constexpr size_t most_late = 32;

const Level& level() { return **receiving(UINT8).coding.level; }

Receiving all_receiving[COMPLEX128 + 1];

// Chunks of so many bytes that are on their way at once: MPI announces and answers one behind all bytes that
// it has queued, so that fewer leave a direction of the wire idle. Both sizes as in compcoll/policy/choices.py.
uint64_t window_of(uint64_t nbytes, bool on_gpu) {
  constexpr uint64_t least = 4, both_ways = 4 << 20, on_device = 32 << 20;
  return std::max(least, ((on_gpu ? on_device : both_ways) + nbytes - 1) / nbytes);
}

uint64_t step_of(uint64_t n, uint64_t most) {
  const uint64_t chunks = std::max<uint64_t>((n + most - 1) / most, 1), unit = chunks * chunk_unit;
  return std::max<uint64_t>((n + unit - 1) / unit, 1) * chunk_unit;
}

}  // namespace

void set_receiving(uint32_t dtype, const engine::Coding& coding, KeptRef kept) {
  all_receiving[dtype] = {coding, std::move(kept)};
}

const Receiving& receiving(uint32_t dtype) { return all_receiving[dtype]; }

// -- first messages

uint8_t* FirstMessage::get(uint64_t nbytes) {
  static_assert(sizeof(Opening) <= lead);
  clear();
  room_ = lead + std::max(nbytes, least_first) + unit_of_first;
  memory_ = the_engine().pool().get(room_);
  return memory_ + lead;
}

void FirstMessage::pack(Opening opening) {
  if (!memory_) get(0);  // its values could not be encoded
  opening.checksum =
      level().checksum(reinterpret_cast<const uint8_t*>(&opening), offsetof(Opening, checksum));
  const uint64_t end = sizeof opening + opening.frame_nbytes, least = std::max(end, least_first);
  size_ = least + (rest_of_first + unit_of_first - least % unit_of_first) % unit_of_first;
  uint8_t* const frame = memory_ + lead;
  memcpy(frame - sizeof opening, &opening, sizeof opening);
  memset(frame + opening.frame_nbytes, 0, size_ - end);
}

void FirstMessage::clear() {
  if (memory_) the_engine().pool().put(memory_, room_);
  memory_ = nullptr;
  size_ = 0;
}

bool unpack_first(const uint8_t* data, uint64_t nbytes, Opening* opening) {
  if (!looks_compressed(int64_t(nbytes))) return false;
  memcpy(opening, data, sizeof *opening);
  return level().checksum(data, offsetof(Opening, checksum)) == opening->checksum &&
         opening->frame_nbytes <= nbytes - sizeof *opening && opening->itemsize &&
         opening->n <= never / opening->itemsize;
}

// -- chunks

ChunkLayout::ChunkLayout(uint64_t n, uint32_t itemsize, uint64_t step, uint64_t plane, uint64_t row)
    : n(n), itemsize(itemsize), step(step), plane(plane), row(row), first(n), count(0) {
  if (!step || n <= std::min(step, largest_first_chunk / itemsize)) {
    this->plane = plane <= n ? plane : 0;
    return;
  }
  const uint64_t opening = std::min(step, opening_chunk / itemsize), rest = n - opening;
  const uint64_t each = step_of(rest, step);
  count = (rest + each - 1) / each;
  first = plane ? engine::plane_ends(n, 0, 1 + count, plane).second : opening;
}

std::shared_ptr<const Schedule> ChunkLayout::schedule(int peer, bool sends, bool on_gpu, bool drops) const {
  auto made = std::make_shared<Schedule>();
  const uint64_t rest = n - first, each = plane ? 0 : step_of(rest, step);
  const int32_t k = int32_t(count), ahead = int32_t(window_of(step * itemsize, on_gpu));
  auto add = [&](int32_t kind, int32_t chunk, bool message) {
    const int32_t block = message && sends ? NONE : chunk;
    const int32_t rank = message ? peer : NONE, tag = message ? chunk : NONE;
    made->ops.push_back({kind, block, NONE, chunk, NONE, NONE, rank, tag, 0, 0, 0, 0});
  };
  for (int32_t i = 0; i < k; i++) {
    BlockRef block = {0, 0, 0, 0, 0, 0, 0, NONE, 0, 1};
    if (plane) {
      auto [begin, end] = engine::plane_ends(n, uint64_t(i) + 1, 1 + count, plane);
      block.start = int64_t(begin), block.n = int64_t(end - begin);
      if (sends) block.plane = int64_t(plane), block.row = int64_t(row);
    } else {
      block.start = int64_t(first + uint64_t(i) * each);
      block.n = int64_t(std::min(each, n - uint64_t(block.start)));
    }
    block.most = drops ? int64_t(std::min(n, std::max({4 * step, most_whole, std::min(n / 16, most_large)})))
                       : block.n;
    made->blocks.push_back(block);
    add(sends ? engine::ENCODE : engine::RECV, i, !sends);
    if (!drops) add(sends ? engine::SEND : engine::DECODE, i, sends);
  }
  // A window of chunks is under way at once: of a sender from the first operation to the last, of a receiver
  // on the wire.
  const int32_t stride = drops ? 1 : 2, n_ops = stride * k;
  for (int32_t i = 0; i < n_ops; i++) {
    const int32_t chunk = i / stride, second = stride * chunk + 1;
    const bool on_wire = i % stride == int32_t(sends);
    const int32_t next_on_wire = on_wire ? stride * (chunk + ahead) : n_ops;
    const int32_t next_decoded = on_wire || sends ? n_ops : stride * (chunk + 2 * ahead);
    made->ops[size_t(i)].first = int32_t(made->successors.size());
    for (int32_t after : {i < second && !drops ? second : n_ops, next_on_wire, next_decoded}) {
      if (after >= n_ops) continue;
      made->successors.push_back(after);
      made->ops[size_t(after)].n_deps++;
    }
  }
  made->rank = 0, made->size = peer + 1, made->n_buffers = 1, made->n_frames = made->n_tags = k;
  made->count_users();
  return made;
}

std::shared_ptr<const Schedule> MessageChunks::schedule(int dest) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (schedule_) return schedule_;
  auto made = layout.schedule(dest, true, on_gpu_, false);
  if (is_used_ && layout.count <= most_kept) schedule_ = made;
  is_used_ = true;
  return made;
}

// -- notices

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
      {source, tag, length});  // before another thread finds no notice of a message that it has just probed
  if (known_.erase({source, serial})) return;
  late_[{source, serial}] = true;
  if (late_.size() >= most_late) collect();
}

// With the lock.
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

// Of several messages that it may be, it is the earliest, but for those that are arriving at receives posted
// before: these would have matched this message, had they not matched another.
int64_t Notices::nbytes_of(int source, int tag, int64_t length) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool arriving = awaited(source, tag);  // asked first: it may end in between
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
  // What has had no notice for so long is not compressed.
  const double now = engine::now();
  for (auto old = unannounced_.begin(); old != unannounced_.end();)
    old = now - old->second.second > forgotten_seconds ? unannounced_.erase(old) : std::next(old);
  auto& [since, seen] =
      unannounced_.emplace(std::make_tuple(source, tag, length), std::make_pair(now, now)).first->second;
  seen = now;
  if (now - since <= late_seconds) return -1;
  // Not what is found long after another one, which a receive has taken in between.
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

// A receive makes one message wait: it may be of an answer, or never complete.
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

bool Notices::settled() {
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
  Unlocked unlocked;
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
