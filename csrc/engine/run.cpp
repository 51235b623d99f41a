#include "run.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "clock.h"
#include "dense.h"
#include "workers.h"

namespace compcoll {
namespace engine {
namespace {

// Minimum time between two polls for messages while there is work: a poll costs as much as a small chunk.
constexpr double poll_seconds = 4e-6;
// Longest time between two polls of a device.
constexpr double device_seconds = 1e-5;
// Seconds between two checks for a refusal by another rank, while nothing arrives.
constexpr double refusal_seconds = 1e-3;
// Results of at least this size are written past the cache.
constexpr uint64_t past_cache_nbytes = 4 << 20;

bool is_message(const Op& op) { return op.kind == SEND || op.kind == RECV; }

bool is_lossless(uint64_t codec) {
  static const uint64_t names[] = {packed_name("raw"), packed_name("mpc"), packed_name("float"),
                                   packed_name("delta")};
  for (uint64_t name : names)
    if (codec == name) return true;
  return false;
}

// Raises a bound to an error; NaN makes it unknown.
void raise(double error, double* bound) {
  if (std::isnan(error) || error > *bound) *bound = error;
}

}  // namespace

RecvHook Run::recv_hook;

Run::Run(std::shared_ptr<const Schedule> schedule, Coding coding, Coding inside, std::vector<Place> buffers,
         std::unique_ptr<Wire> wire, Tags tags, Pool& pool, Workers* workers, std::shared_ptr<Marks> marks,
         bool direct, std::shared_ptr<Bases> bases)
    : schedule_(std::move(schedule)),
      coding_(std::move(coding)),
      inside_(std::move(inside)),
      buffers_(std::move(buffers)),
      wire_(std::move(wire)),
      tags_(tags),
      pool_(pool),
      workers_(workers),
      coder_(coding_, pool, schedule_->terms),
      inside_coder_(inside_, pool, schedule_->terms),
      bases_(std::move(bases)),
      frames_(schedule_->n_frames),
      errors_(schedule_->blocks.size(), 0.0),
      n_deps_(schedule_->ops.size()),
      frame_users_(schedule_->frame_users),
      scratch_users_(schedule_->scratch_users),
      scratch_(schedule_->scratch.size(), nullptr),
      remaining_(schedule_->ops.size()) {
  if (workers_) stats_.workers = workers_->limit();
  if (bases_) bases_->prepare(schedule_->ops.size());
  for (const Place& place : buffers_)
    if (place.gpu && !scratch_gpu_) scratch_gpu_ = place.gpu;
  if (scratch_gpu_)
    device_ = std::make_unique<DeviceWork>(coder_, inside_coder_, pool_,
                                           marks ? std::move(marks) : std::make_shared<Marks>(), direct);
  for (const Op& op : schedule_->ops) device_decodes_ += device_ && is_device_decode(op);
  for (size_t i = 0; i < n_deps_.size(); i++) {
    n_deps_[i] = schedule_->ops[i].n_deps;
    if (!n_deps_[i]) make_ready(int32_t(i));
  }
  for (Frame& frame : frames_) frame.allocator = &pool_;
  if (Allocator* shared = wire_->allocator())
    for (const Op& op : schedule_->ops)
      if (op.kind == SEND && wire_->lends(op.peer)) frames_[op.frame].allocator = shared;
}

Run::~Run() {
  if (device_ && device_->under_way()) return;  // a device may still use the memory, which is kept
  for (size_t i = 0; i < frames_.size(); i++) drop(int32_t(i));
  for (size_t i = 0; i < scratch_.size(); i++)
    if (scratch_[i]) scratch_pool().put(scratch_[i], schedule_->scratch[i].n * 16);
}

Allocator& Run::scratch_pool() { return scratch_gpu_ ? scratch_gpu_->memory() : pool_; }

bool Run::step() {
  std::lock_guard<std::mutex> alone(stepping_);
  if (held_until_ == 0) held_until_ = posts;
  if (held_until_ < 0) return progress();
  const bool is_over = now() > held_until_;
  const int32_t op = is_over ? NONE : take(work_);
  if (is_over) held_until_ = posts;  // not now: what it waited for may have arrived
  if (op != NONE) execute(op);
  return op != NONE;
}

bool Run::hold(double seconds) {
  double never_held = 0;
  return !device_ && held_until_.compare_exchange_strong(never_held, now() + seconds);
}

// Posts sends before MPI progresses. Otherwise the peer's message would be handled first, and the answer
// after it.
bool Run::progress() {
  if (misfit_ && !broken_) refuse();
  if (broken_) return false;
  bool moved = post();
  if (device_ && step_device()) moved = true;
  int32_t op = take(work_);
  if (op != NONE) {
    execute(op);
    moved = true;
    if (now() - last_poll_ < poll_seconds) return true;
    post();
  }
  if (poll() || moved) return true;
  op = take(idle_);
  if (op == NONE) return false;
  execute(op);
  return true;
}

void Run::announce(double seconds) {
  std::lock_guard<std::mutex> alone(stepping_);
  if (broken_) return;
  held_until_ = posts;
  const double end = now() + seconds;
  post();
  if (device_ && step_device()) post();
  for (int32_t op; now() < end && (op = take(work_)) != NONE; post()) execute(op);
}

bool Run::work() {
  int32_t op = take(work_);
  if (op == NONE) op = take(idle_);
  if (op == NONE) return false;
  try {
    execute(op);
  } catch (const std::bad_alloc&) {
    broken_ = true;
    return false;
  }
  return true;
}

bool Run::done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return !remaining_ && (!misfit_ || tags_.refusal < 0);  // after a misfit, other ranks are told first
}

// Ends early when a worker completes an operation.
void Run::rest(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_on_device_) seconds = std::min(seconds, device_seconds);
  const bool may_post = held_until_ <= 0 && !messages_.empty();
  if (!may_post && device_work_.empty() && remaining_)
    changed_.wait_for(lock, std::chrono::duration<double>(seconds));
}

void Run::fail(const Error& error) {
  std::lock_guard<std::mutex> lock(mutex_);
  note(error);
}

// Requires the lock.
void Run::note(const Error& error) {
  if (!error_) error_ = error;
  if (error.problem == Problem::MISMATCH || error.problem == Problem::MESSAGES) misfit_ = true;
  failed_ = true;
}

void Run::fail(Problem problem, int64_t status) {
  Error error;
  error.problem = problem;
  error.status = status;
  fail(error);
}

// Takes the earliest ready operation, which counts as busy until it is done, and wakes workers for the rest.
int32_t Run::take(Ready& ready) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (ready.empty() || broken_) return NONE;
  int32_t op = ready.top();
  ready.pop();
  busy_++;
  const size_t others = work_.size() + idle_.size();
  lock.unlock();
  if (workers_ && others) workers_->wake(others);
  return op;
}

void Run::give_up() {
  std::lock_guard<std::mutex> alone(stepping_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
  }
  refuse();
  for (; busy_; sched_yield())
    if (device_) step_device();
}

// Tells all ranks that this one sends and receives no more: some ranks that wait for it exchange no messages
// with it.
void Run::refuse() {
  if (tags_.refusal < 0 || refused_) return;
  refused_ = true;
  for (int32_t peer = 0; peer < schedule_->size; peer++)
    if (peer != schedule_->rank) wire_->refuse(peer, tags_.refusal);
  broken_ = true;
}

void Run::look_for_refusal() {
  if (tags_.refusal < 0 || last_poll_ - looked_ < refusal_seconds) return;
  if (looked_ && wire_->is_refused(tags_.refusal)) {
    fail(Problem::REFUSED);
    refuse();
  }
  looked_ = last_poll_;
}

AwaitedRanks Run::awaited() {
  AwaitedRanks found;
  enum : uint8_t { has_sent = 1, sends = 2, receives = 4 };
  std::vector<uint8_t> facts(size_t(schedule_->size));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < n_deps_.size(); i++) {
      const Op& op = schedule_->ops[i];
      if (!is_message(op) || n_deps_[i] > 0) continue;
      if (n_deps_[i] == 0) facts[size_t(op.peer)] |= op.kind == RECV ? sends : receives;
      else if (op.kind == RECV) facts[size_t(op.peer)] |= has_sent;
    }
  }
  const auto add = [&](uint8_t mask, uint8_t value) {
    for (int rank = 0; rank < schedule_->size; rank++)
      if ((facts[size_t(rank)] & mask) == value) found.ranks.push_back(rank);
    return !found.ranks.empty();
  };
  found.are_silent = add(sends | has_sent, sends);
  if (!found.are_silent && !add(sends, sends)) found.only_receive = add(receives, receives);
  for (int rank = 0; rank < schedule_->rank; rank++) found.has_lower |= facts[size_t(rank)] & has_sent;
  return found;
}

// Error of a message that should have been its sender's last one and is not, or the reverse.
Error Run::check_end(int32_t op) const {
  Error error;
  const Frame& frame = frames_[schedule_->ops[op].frame];
  const bool more = frame.came > frame.nbytes;
  if (tags_.refusal >= 0 && more == schedule_->ends[op]) error.problem = Problem::MESSAGES;
  error.status = more;
  return error;
}

// -- messages

bool Run::post() {
  posting_.clear();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (; !messages_.empty(); messages_.pop()) posting_.push_back(messages_.top());
  }
  for (int32_t op : posting_) {
    bool under_way = schedule_->ops[op].kind == SEND ? begin_send(op) : begin_recv(op);
    if (!under_way) finish(op, {});
  }
  return !posting_.empty();
}

bool Run::begin_send(int32_t op) {
  const Op& send = schedule_->ops[op];
  const Frame& frame = frames_[send.frame];
  stats_.messages++;
  if (send.inside) {
    stats_.inside_nbytes += frame.nbytes;
  } else {
    stats_.raw_nbytes += frame.poisoned() ? 0 : frame.header.nbytes();
    stats_.wire_nbytes += frame.nbytes;
  }
  static const uint8_t nothing = 0;
  const uint8_t* memory = frame.poisoned() ? &nothing : frame.memory;
  const uint64_t nbytes = frame.nbytes + more_nbytes(op);
  int status = wire_->send(op, memory, nbytes, send.peer, tags_.first + send.tag % tags_.n);
  if (status) fail(Problem::MPI, status);
  return !status;
}

uint64_t Run::more_nbytes(int32_t op) const {
  return tags_.refusal < 0 || schedule_->ends[op] ? 0 : MORE_NBYTES;
}

uint64_t Run::room(const Op& recv) const {
  // Instead of 16-bit floats, a frame may contain their sums, which are float32.
  uint64_t each = itemsize(coding_.dtype);
  return HEADER_NBYTES + schedule_->blocks[recv.block].most * (each > 4 ? each : 4) + MORE_NBYTES;
}

bool Run::begin_recv(int32_t op) {
  const Op& recv = schedule_->ops[op];
  Frame& frame = frames_[recv.frame];
  const uint64_t nbytes = room(recv);
  const bool lends = wire_->lends(recv.peer);
  if (Gpu* gpu = gpu_of(schedule_->blocks[recv.block]); gpu && !lends) {
    frame.gpu = device_->direct() ? gpu : nullptr;
    frame.allocator = frame.gpu ? &gpu->memory() : static_cast<Allocator*>(&pinned());
  }
  if (!lends) try {
      frame.memory = frame.allocator->get(nbytes);
      frame.room = nbytes;
    } catch (const std::bad_alloc&) { fail(Problem::MEMORY); }
  // Without memory, the message is truncated to nothing, so that its sender does not wait forever.
  static uint8_t nothing;
  uint8_t* memory = frame.memory || lends ? frame.memory : &nothing;
  int status =
      wire_->recv(op, memory, frame.memory ? nbytes : 0, recv.peer, tags_.first + recv.tag % tags_.n);
  if (status) fail(Problem::MPI, status);
  return !status;
}

bool Run::poll() {
  last_poll_ = now();
  arrivals_.clear();
  if (int status = wire_->poll(&arrivals_)) {
    fail(Problem::MPI, status);
    broken_ = true;
  }
  for (const Done& done : arrivals_) arrived(done);
  if (arrivals_.empty()) look_for_refusal();
  return !arrivals_.empty();
}

void Run::arrived(const Done& done) {
  const Op& op = schedule_->ops[done.op];
  Error error;
  if (done.error) {
    error.problem = done.error == Done::NO_MEMORY ? Problem::MEMORY : Problem::MPI;
    error.status = done.error;
  } else if (op.kind == RECV) {
    Frame& frame = frames_[op.frame];
    if (done.frame) {
      frame.memory = const_cast<uint8_t*>(done.frame);
      frame.lent = true;
      if (device_) wire_->pin(done.frame);
    }
    frame.came = uint64_t(done.nbytes);
    const bool poisoned = frame.came <= (tags_.refusal < 0 ? 0 : MORE_NBYTES);
    if (frame.gpu && !poisoned) {  // the device reads its header
      frame.nbytes = done.nbytes;
      std::lock_guard<std::mutex> lock(mutex_);
      device_work_.push(done.op);
      return;
    }
    if (recv_hook.arrived && frame.memory)
      recv_hook.arrived(recv_hook.context, frame.memory, poisoned ? 0 : frame.came - more_nbytes(done.op));
    error = coder_.received(frame.memory, poisoned ? 0 : frame.came, &frame);
    if (!error) error = check_end(done.op);
  }
  // A message that is longer than the memory of its receiver does not match the schedule.
  if (error.problem == Problem::MPI && op.kind == RECV && frames_[op.frame].room) misfit_ = true;
  if (error) fail(error);
  finish(done.op, {});
}

void Run::execute(int32_t op) {
  struct Busy {
    ~Busy() { busy--; }
    std::atomic<int>& busy;
  } busy = {busy_};
  OpResult outcome;
  double start = now();
  try {
    outcome.error = perform(schedule_->ops[op]);
  } catch (const std::bad_alloc&) { outcome.error.problem = Problem::MEMORY; }
  outcome.seconds = now() - start;
  note_pace(schedule_->ops[op], outcome);
  finish(op, outcome);
}

void Run::note_pace(const Op& op, const OpResult& outcome) {
  if (!coding_.pace || op.kind > ADD || op.block == NONE || op.inside || outcome.error || failed_) return;
  if (const uint64_t n = uint64_t(schedule_->blocks[op.block].n))
    coding_.pace->note(op.kind, outcome.seconds, n * itemsize(coding_.dtype));
}

Error Run::perform(const Op& op) {
  Error error;
  switch (op.kind) {
    case ENCODE: return encode(op);
    case ADD:
      if (!failed_)
        error = coder_.add(frames_[op.frame], frames_[op.other], span(op.block), &frames_[op.sum]);
      if (error) frames_[op.sum].nbytes = 0;
      return error;
    case DECODE:
    case DECODE_ADD: return decode(op);
    case WRITE_DECODED: return write_decoded(op);
    default:  // COPY, ROUND
      errors_[op.into] = error_of(op.block) + copy(span(op.block), span(op.into));
      return error;
  }
}

Error Run::encode(const Op& op) {
  if (failed_) return {};
  Frame& frame = frames_[op.frame];
  const Dense block(pool_, span(op.block), true);
  const bool itself = op.into == op.block;
  const bool apart = op.into != NONE && !itself && !on_device(op.into);
  const Dense other(pool_, apart ? span(op.into) : Span{nullptr, 0, 0}, false);
  const Dense& into = itself ? block : other;
  Coder& coder = op.inside ? inside_coder_ : coder_;
  frame.checked = has_checksum(op);
  Error error = coder.encode(block.span(), error_of(op.block), into.span(), &frame, base_of(op));
  if (error) {
    frame.nbytes = 0;
  } else if (frame.settled) {
    into.store();
    errors_[op.into] = frame.bound();
  }
  return error;
}

Error Run::decode(const Op& op) {
  const Frame& frame = frames_[op.frame];
  const bool adds = op.kind == DECODE_ADD;
  Span into = span(adds ? schedule_->blocks[op.block] : place(op.block, frame));
  into.past_cache = is_past_cache(op.block);
  const Dense block(pool_, into, adds);
  Error error = adds ? coder_.decode_add(frame, block.span(), &errors_[op.block])
                     : coder_.decode(frame, block.span(), base_of(op));
  if (!adds) errors_[op.block] = frame.bound();
  if (!error) block.store();
  return error;
}

Error Run::write_decoded(const Op& op) {
  const Frame& frame = frames_[op.frame];
  if (frame.settled || frame.poisoned()) return {};
  if (is_exact(frame)) {
    copy(span(op.block), span(op.into));
    errors_[op.into] = errors_[op.block];
    return {};
  }
  errors_[op.into] = frame.bound();
  const Dense into(pool_, span(op.into), false);
  Error error = coder_.decode(frame, into.span());
  if (!error) into.store();
  return error;
}

bool Run::is_exact(const Frame& frame) const { return coding_.lossless || is_lossless(frame.header.codec); }

double Run::copy(const Span& block, const Span& into) {
  if (block.data == into.data && block.layout == into.layout && block.first == into.first) return 0;
  const uint64_t nbytes = block.nbytes();
  if (into.layout && !block.layout && block.dtype == into.dtype) {
    scatter(*into.layout, into.data, into.first, into.first + nbytes, block.data);
    return 0;
  }
  if (block.layout && !into.layout && block.dtype == into.dtype) {
    gather(*block.layout, block.data, block.first, block.first + nbytes, into.data);
    return 0;
  }
  const Dense from(pool_, block, true), to(pool_, into, false);
  const double error = coder_.copy(from.span(), to.span());
  to.store();
  return error;
}

bool Run::is_past_cache(int32_t block) const {
  return schedule_->final_blocks[block] &&
         schedule_->final_elements * itemsize(coding_.dtype) >= past_cache_nbytes;
}

Span Run::span(int32_t block) {
  Span found = span(schedule_->blocks[block]);
  found.past_cache = is_past_cache(block);
  return found;
}

Base* Run::base_of(const Op& op) {
  return bases_ ? bases_->of(int32_t(&op - schedule_->ops.data())) : nullptr;
}

Span Run::span(const BlockRef& block) {
  const uint32_t dtype = dtype_of(block);
  const uint64_t n = block.n, start = block.start * itemsize(dtype), plane = block.plane, row = block.row;
  if (block.buffer < schedule_->n_buffers) {
    const Place& place = buffers_[block.buffer];
    if (place.layout) return {place.data, n, dtype, plane, row, place.layout.get(), place.first + start};
    return {place.data + start, n, dtype, plane, row};
  }
  std::lock_guard<std::mutex> lock(mutex_);
  int32_t k = block.buffer - schedule_->n_buffers;
  if (!scratch_[k]) scratch_[k] = scratch_pool().get(schedule_->scratch[k].n * 16);
  return {scratch_[k] + start, n, dtype, plane, row};
}

// The block that a frame's values belong to. If the sender's block has a shape, its chunks begin at other
// elements than this rank's. If that shape does not fit into the block, returns the chunk, whose length no
// frame of that shape has.
BlockRef Run::place(int32_t index, const Frame& frame) const {
  const BlockRef& chunk = schedule_->blocks[index];
  const Header& h = frame.header;
  if (chunk.of == NONE || frame.poisoned() || h.ndim < 2) return chunk;
  BlockRef part = schedule_->blocks[chunk.of];
  const uint64_t plane = h.shape[1] * h.shape[2];
  if (!plane || plane > uint64_t(part.n)) return chunk;
  auto [begin, end] = plane_ends(part.n, chunk.number, chunk.count, plane);
  part.start += begin;
  part.n = end - begin;
  return part;
}

void Run::finish(int32_t op, const OpResult& outcome) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Op& done = schedule_->ops[op];
  if (outcome.error) note(outcome.error);
  note(done, outcome);
  release(done);
  for (const int32_t* later = schedule_->successors_begin(op); later != schedule_->successors_end(op);
       later++)
    if (!--n_deps_[*later]) make_ready(*later);
  n_deps_[op] = finished;
  remaining_--;
  if (workers_ && (!messages_.empty() || !device_work_.empty() || !remaining_)) changed_.notify_one();
}

void Run::note(const Op& op, const OpResult& outcome) {
  if (is_message(op)) return;
  bool encodes = op.kind == ENCODE || op.kind == ADD;
  (encodes ? stats_.encode_seconds : stats_.decode_seconds) += outcome.seconds;
  const Frame* made = op.kind == ENCODE ? &frames_[op.frame] : nullptr;
  if (made && !made->poisoned() && made->header.size()) {
    stats_.dimensions[made->header.ndim]++;
    stats_.fallbacks += made->header.fallback;
    size_t i = 0;
    while (i < stats_.used.size() && stats_.used[i].first != made->header.codec) i++;
    if (i == stats_.used.size()) stats_.used.push_back({made->header.codec, 0});
    stats_.used[i].second++;
    raise(made->bound(), &stats_.encoded);
  }
  if (op.kind == DECODE) note_bound(op.block);
  else if (op.into != NONE) note_bound(op.into);
}

// Largest absolute error of a block's values, including overlapping blocks that were written.
double Run::error_of(int32_t block) const {
  double error = errors_[block];
  for (int32_t other : schedule_->sources[block])
    if (std::isnan(errors_[other]) || errors_[other] > error) error = errors_[other];
  return error;
}

// Records the error of values in the caller's memory.
void Run::note_bound(int32_t block) {
  if (schedule_->blocks[block].buffer < schedule_->n_buffers) raise(errors_[block], &stats_.bound);
}

void Run::make_ready(int32_t index) {
  const Op& op = schedule_->ops[index];
  if (is_message(op)) {
    messages_.push(index);
  } else if (needs_device(op)) {
    const bool waits = op.kind == WRITE_DECODED && op.idle && !schedule_->has_successors(index);
    (waits ? device_idle_ : device_work_).push(index);
  } else {
    (op.idle ? idle_ : work_).push(index);
  }
}

void Run::release(const Op& op) {
  for (int32_t frame : {op.frame, op.other, op.sum})
    if (frame != NONE && !--frame_users_[frame]) drop(frame);
  for (int32_t block : {op.block, op.into}) {
    if (block == NONE || schedule_->blocks[block].buffer < schedule_->n_buffers) continue;
    int32_t k = schedule_->blocks[block].buffer - schedule_->n_buffers;
    if (--scratch_users_[k] || !scratch_[k]) continue;
    scratch_pool().put(scratch_[k], schedule_->scratch[k].n * 16);
    scratch_[k] = nullptr;
  }
}

void Run::drop(int32_t index) {
  Frame& frame = frames_[index];
  if (frame.memory && frame.lent) wire_->release(frame.memory);
  else if (frame.memory && frame.room) frame.allocator->put(frame.memory, frame.room);
  frame.memory = nullptr;
}

}  // namespace engine
}  // namespace compcoll
