#include "virtual.h"

#include <algorithm>
#include <cmath>

#include "engine/frame.h"

namespace compcoll {
namespace engine {
namespace {

// For worlds of up to 65,536 ranks.
uint64_t key(int32_t source, int32_t rank, int32_t tag) {
  return uint64_t(uint32_t(tag)) << 32 | uint64_t(uint32_t(source)) << 16 | uint32_t(rank);
}

int32_t pop(std::priority_queue<int32_t, std::vector<int32_t>, std::greater<int32_t>>& ready) {
  int32_t first = ready.top();
  ready.pop();
  return first;
}

// The first operation or message waiting under this key; NONE if there is none.
int32_t take(std::unordered_map<uint64_t, std::deque<int32_t>>& waiting, uint64_t key) {
  auto found = waiting.find(key);
  if (found == waiting.end()) return NONE;
  int32_t first = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) waiting.erase(found);
  return first;
}

double pass(double* port, double ready, double seconds) { return *port = std::max(*port, ready) + seconds; }

}  // namespace

World::World(const std::vector<std::shared_ptr<Schedule>>& schedules, const Machine& machine, int size,
             bool flip, bool records)
    : machine_(machine), size_(size), flip_(flip), records_(records), random_(size) {
  size_t n = schedules.size(), nodes = (n + machine.ranks_per_node - 1) / machine.ranks_per_node;
  out_.assign(n, 0);
  in_.assign(n, 0);
  nic_out_.assign(nodes, 0);
  nic_in_.assign(nodes, 0);
  for (int i = 0; i < machine.cores; i++) cores_.push(0);
  ranks_.resize(n);
  for (size_t i = 0; i < n; i++) {
    Rank& rank = ranks_[i];
    rank.schedule = schedules[i];
    const auto& ops = rank.schedule->ops;
    rank.remaining = ops.size();
    rank.processors = 1 + machine.workers;
    rank.settled.assign(rank.schedule->n_frames, false);
    rank.frame_nbytes.assign(rank.schedule->n_frames, 0);
    for (const Op& op : ops) rank.n_deps.push_back(op.n_deps);
    for (size_t k = 0; k < ops.size(); k++)
      if (!ops[k].n_deps) ready(rank, int32_t(k));
  }
}

double World::run() {
  for (size_t i = 0; i < ranks_.size(); i++) go_on(int32_t(i));
  double finished = 0;
  while (!events_.empty()) {
    Event event = events_.top();
    events_.pop();
    finished = now_ = event.time;
    happen(event);
  }
  return finished;
}

std::vector<int32_t> World::stuck() const {
  std::vector<int32_t> found;
  for (size_t i = 0; i < ranks_.size(); i++)
    if (ranks_[i].remaining) found.push_back(int32_t(i));
  return found;
}

size_t World::lost() const {
  size_t n = 0;
  for (const auto& waiting : unmatched_) n += waiting.second.size();
  return n;
}

void World::at(double time, What what, int32_t rank, int32_t op, int32_t message) {
  events_.push({time, count_++, what, rank, op, message});
}

void World::happen(const Event& e) {
  Rank& rank = ranks_[e.rank];
  switch (e.what) {
    case WORKED:
      rank.processors++;
      finish(e.rank, e.op);
      break;
    case MOVED_OUT:
      rank.processors++;
      send(e.rank, e.op);
      break;
    case LEFT: finish(e.rank, e.op); break;
    case REACHED: enter(e.rank, e.message); return;
    case CAME:
      if (link(e.rank, log_[e.message].source).overhead || link(e.rank, log_[e.message].source).cpu)
        rank.arrived.push_back(e.message);
      else deliver(e.message);
      break;
    case FETCHED:
      rank.processors++;
      deliver(e.message);
      break;
  }
  go_on(e.rank);
}

// -- one rank

void World::go_on(int32_t index) {
  Rank& rank = ranks_[index];
  for (;;) {
    while (!rank.receives.empty()) expect(index, pop(rank.receives));
    if (!rank.processors) return;
    if (handle_message(index)) continue;
    Ready& from = rank.work.empty() ? rank.idle : rank.work;
    if (from.empty()) return;
    int32_t op = pop(from);
    double seconds = seconds_of(rank, rank.schedule->ops[op]);
    if (seconds) occupy(index, seconds, WORKED, op);
    else finish(index, op);
  }
}

// True if a message occupied a processor, or needed none.
bool World::handle_message(int32_t index) {
  Rank& rank = ranks_[index];
  if (!rank.sends.empty()) {
    int32_t op = pop(rank.sends);
    const Op& send_op = rank.schedule->ops[op];
    const LinkSpeed& by = link(index, send_op.peer);
    double seconds = by.overhead + rank.frame_nbytes[send_op.frame] * by.cpu;
    if (seconds) occupy(index, seconds, MOVED_OUT, op);
    else send(index, op);
    return true;
  }
  if (rank.arrived.empty()) return false;
  int32_t message = rank.arrived.front();
  rank.arrived.pop_front();
  const LinkSpeed& by = link(index, log_[message].source);
  occupy(index, by.overhead + log_[message].nbytes * by.cpu, FETCHED, log_[message].recv, message);
  return true;
}

// Occupies a processor of a rank, once a core is free.
void World::occupy(int32_t rank, double seconds, What what, int32_t op, int32_t message) {
  double start = now_;
  if (machine_.cores) {
    start = std::max(start, cores_.top());
    cores_.pop();
    cores_.push(start + seconds);
  }
  ranks_[rank].processors--;
  if (records_) intervals.push_back({rank, op, start, start + seconds, 0});
  at(start + seconds, what, rank, op, message);
}

void World::ready(Rank& rank, int32_t index) {
  const Op& op = rank.schedule->ops[index];
  if (op.kind == SEND) rank.sends.push(index);
  else if (op.kind == RECV) rank.receives.push(index);
  else (op.idle ? rank.idle : rank.work).push(index);
}

void World::finish(int32_t index, int32_t op) {
  Rank& rank = ranks_[index];
  rank.remaining--;
  const Schedule& schedule = *rank.schedule;
  for (const int32_t* later = schedule.successors_begin(op); later != schedule.successors_end(op); later++)
    if (!--rank.n_deps[*later]) ready(rank, *later);
}

double World::seconds_of(Rank& rank, const Op& op) {
  const Schedule& schedule = *rank.schedule;
  double nbytes = double(schedule.blocks[op.block].n) * machine_.itemsize;
  double coded = HEADER_NBYTES + std::floor(nbytes / machine_.ratio);
  bool exact = std::isinf(machine_.reconstruct);
  double copied = 2 * nbytes / machine_.memory;
  const bool decodes = op.kind == DECODE || op.kind == DECODE_ADD;
  if (machine_.ratio > 1 && decodes && rank.frame_nbytes[op.frame] > coded)  // raw
    return (op.kind == DECODE ? copied : 1.5 * copied) + machine_.call;
  switch (op.kind) {
    case ENCODE: {
      if (op.inside) {
        rank.settled[op.frame] = false;
        rank.frame_nbytes[op.frame] = HEADER_NBYTES + uint64_t(nbytes);
        return copied + machine_.call;
      }
      bool settles = op.into != NONE && !exact && machine_.reconstruct > 0;
      rank.settled[op.frame] = settles;
      rank.frame_nbytes[op.frame] = uint64_t(coded);
      return coding(nbytes, settles ? machine_.reconstruct : machine_.encode, nbytes + coded);
    }
    case ADD: rank.frame_nbytes[op.sum] = uint64_t(coded); return coding(nbytes, machine_.decode, 3 * coded);
    case DECODE: return coding(nbytes, machine_.decode, coded + nbytes);
    case DECODE_ADD: return coding(nbytes, machine_.decode, coded + 2 * nbytes, nbytes);
    case WRITE_DECODED:
      if (rank.settled[op.frame]) return 0;
      if (!exact) return coding(nbytes, machine_.decode, coded + nbytes);
      return op.block == op.into ? 0 : copied;
    default: return op.block == op.into ? 0 : copied;
  }
}

// Seconds of coding; the next operand is fetched during coding.
double World::coding(double nbytes, double speed, double moved, double read) const {
  return std::max(nbytes / speed, moved / machine_.memory) + read / machine_.memory + machine_.call;
}

// -- between ranks

const LinkSpeed& World::link(int32_t rank, int32_t peer) const {
  return rank / machine_.ranks_per_node == peer / machine_.ranks_per_node ? machine_.node : machine_.network;
}

void World::send(int32_t index, int32_t op) {
  Rank& rank = ranks_[index];
  const Op& send_op = rank.schedule->ops[op];
  int32_t simulated = int32_t(ranks_.size()), place = send_op.peer % simulated, away = send_op.peer - place;
  int32_t source = flip_ ? index ^ away : (index - away + size_) % size_;
  const int32_t near = machine_.ranks_per_node;
  if (!flip_ && simulated == 1 && near > 1)  // distances of nodes and of positions in them are separate
    source = (size_ - send_op.peer / near * near) % size_ + (near - send_op.peer % near) % near;
  const LinkSpeed& by = link(index, send_op.peer);
  uint64_t nbytes = rank.frame_nbytes[send_op.frame];
  double seconds = double(nbytes) / by.bandwidth;
  double left =
      pass(&by == &machine_.node ? &out_[index] : &nic_out_[index / machine_.ranks_per_node], now_, seconds);
  if (records_) intervals.push_back({index, op, left - seconds, left, 1});
  messages++;
  wire_nbytes += nbytes;
  // Matched in the order of sending, whichever arrives first.
  int32_t number = int32_t(log_.size()), recv = take(wanted_, key(source, place, send_op.tag));
  log_.push_back({place, recv, source, nbytes, false});
  if (recv == NONE) unmatched_[key(source, place, send_op.tag)].push_back(number);
  at(left, LEFT, index, op);
  at(left - seconds + by.latency, REACHED, place, NONE, number);
}

// The first byte has reached the port of the node, or of the rank.
void World::enter(int32_t index, int32_t number) {
  const LinkSpeed& by = link(index, log_[number].source);
  double* port = &by == &machine_.node ? &in_[index] : &nic_in_[index / machine_.ranks_per_node];
  double came = pass(port, now_, double(log_[number].nbytes) / by.bandwidth);
  if (machine_.jitter) came += machine_.jitter * std::generate_canonical<double, 32>(random_);
  at(came, CAME, index, NONE, number);
}

void World::expect(int32_t index, int32_t op) {
  const Op& recv = ranks_[index].schedule->ops[op];
  int32_t number = take(unmatched_, key(recv.peer, index, recv.tag));
  if (number == NONE) {
    wanted_[key(recv.peer, index, recv.tag)].push_back(op);
    return;
  }
  log_[number].recv = op;
  if (log_[number].arrived) deliver(number);
}

// The last byte has arrived, and a processor has fetched it.
void World::deliver(int32_t number) {
  Message& message = log_[number];
  message.arrived = true;
  if (message.recv == NONE) return;
  Rank& rank = ranks_[message.rank];
  const Op& recv = rank.schedule->ops[message.recv];
  rank.frame_nbytes[recv.frame] = message.nbytes;
  finish(message.rank, message.recv);
}

}  // namespace engine
}  // namespace compcoll
