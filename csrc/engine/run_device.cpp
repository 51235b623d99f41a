// The part of a run that has to do with memory of devices.
#include "clock.h"
#include "run.h"

namespace compcoll {
namespace engine {

// Hands operations that are ready to the device, all at once, and takes what has ended there.
bool Run::step_device(Ready& ready, bool polls) {
  handed_over_.clear();
  bool moved = false;
  for (int32_t op; (op = take(ready, 0)) != NONE; moved = true) {
    DeviceOp one = {op, COPY, NONE, {NONE, 0, 0}, {NONE, 0, 0}, {NONE, nullptr, 0}, {NONE, nullptr, 0}, 0};
    Outcome nothing_left;
    if (hand_over(op, &one, &nothing_left.error)) handed_over_.push_back(one);
    else finish(op, nothing_left);
  }
  under_way_ += handed_over_.size();
  if (handed_over_.empty() && !(polls && under_way_)) return moved;
  std::vector<int32_t> released;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    released.swap(released_);
  }
  completed_.clear();
  DeviceStep step = {handed_over_, released, completed_};
  const double start = now();
  if (!device_.step(device_.context, step)) {
    fail(Problem::CALLBACK);
    broken_ = true;
    return true;
  }
  const double each = (now() - start) / double(handed_over_.size());
  for (const DeviceDone& done : completed_) completed(done);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const DeviceOp& one : handed_over_)
    (one.kind == ENCODE || one.kind == ADD ? stats_.encode_seconds : stats_.decode_seconds) += each;
  launched_ = step.last && remaining_ == under_way_;
  return moved || !completed_.empty();
}

// Describes an operation for the device; false where it has nothing to do.
bool Run::hand_over(int32_t index, DeviceOp* one, Error* error) {
  const Op& op = schedule_->ops[index];
  auto block = [&](const BlockRef& b) { return DeviceBlock{b.buffer, b.start, b.n}; };
  auto frame = [&](int32_t i) { return DeviceFrame{i, frames_[i].memory, frames_[i].nbytes}; };
  auto fits = [&](int32_t i, const BlockRef& b, bool adds) {
    return coder_.fits(frames_[i], {nullptr, uint64_t(b.n), dtype_of(b)}, adds, error);
  };
  if (op.frame != NONE) one->frame = frame(op.frame);
  one->kind = Kind(op.kind);
  one->block = block(schedule_->blocks[op.block]);
  switch (op.kind) {
    case ENCODE:
      one->made = op.frame;
      one->carried = error_of(op.block);
      return !failed_;
    case ADD:
      one->made = op.sum;
      one->other = frame(op.other);
      return !failed_ && fits(op.frame, schedule_->blocks[op.block], false) &&
             fits(op.other, schedule_->blocks[op.block], false);
    case DECODE: {
      const BlockRef place = this->place(op.block, frames_[op.frame]);
      one->block = block(place);
      return fits(op.frame, place, false);
    }
    case DECODE_ADD: return fits(op.frame, schedule_->blocks[op.block], true);
    case RECV: one->made = op.frame; return true;
    case SETTLE:
      if (frames_[op.frame].settled || frames_[op.frame].poisoned()) return false;
      if (is_exact(frames_[op.frame])) return hand_over_copy(op, one);
      one->kind = DECODE;
      one->block = block(schedule_->blocks[op.into]);
      return fits(op.frame, schedule_->blocks[op.into], false);
    default: return hand_over_copy(op, one);
  }
}

bool Run::hand_over_copy(const Op& op, DeviceOp* one) {
  const BlockRef &from = schedule_->blocks[op.block], &to = schedule_->blocks[op.into];
  auto address = [&](const BlockRef& b) -> const uint8_t* {
    return b.buffer < schedule_->n_buffers ? buffers_[b.buffer].data + b.start * itemsize(dtype_of(b))
                                           : nullptr;
  };
  one->kind = COPY;
  one->into = {to.buffer, to.start, to.n};
  if (!address(from) || address(from) != address(to)) return true;
  errors_[op.into] = error_of(op.block);
  return false;
}

void Run::completed(const DeviceDone& done) {
  under_way_--;
  Outcome outcome;
  if (done.failed) outcome.error.problem = Problem::CALLBACK;
  if (done.op == NONE) {
    if (done.failed) fail(outcome.error);
    std::lock_guard<std::mutex> lock(mutex_);
    remaining_--;
    return;
  }
  const Op& op = schedule_->ops[done.op];
  if (!done.failed) outcome.error = accept(op, done);
  else if (op.kind == RECV) frames_[op.frame].nbytes = 0;
  finish(done.op, outcome);
}

// Takes what the device has made of an operation.
Error Run::accept(const Op& op, const DeviceDone& done) {
  switch (op.kind) {
    case DECODE: errors_[op.block] = done.bound; break;
    case DECODE_ADD: errors_[op.block] += done.bound; break;
    case SETTLE: errors_[op.into] = done.bound + (is_exact(frames_[op.frame]) ? errors_[op.block] : 0); break;
    case COPY:
    case ROUND: errors_[op.into] = error_of(op.block) + done.bound; break;
    default: {
      Frame& frame = frames_[op.kind == ADD ? op.sum : op.frame];
      frame.memory = done.memory;
      frame.on_device = done.memory != done.header;
      return coder_.received(done.header, done.nbytes, &frame);
    }
  }
  return {};
}

// Memory for the frames that are about to arrive for blocks on a device.
void Run::find_rooms() {
  rooms_.clear();
  for (int32_t index : posting_) {
    const Op& op = schedule_->ops[index];
    if (op.kind == RECV && on_device(op.block))
      rooms_.push_back({op.frame, schedule_->blocks[op.block].buffer, room(op), nullptr});
  }
  if (rooms_.empty()) return;
  if (!device_.receive(device_.context, rooms_)) fail(Problem::CALLBACK);
  for (const DeviceRoom& room : rooms_) {
    frames_[room.frame].memory = room.memory;
    frames_[room.frame].on_device = device_.direct;
  }
}

bool Run::on_device(int32_t index) const {
  const int32_t buffer = schedule_->blocks[index].buffer;
  return device_ && (buffer >= schedule_->n_buffers || buffers_[buffer].on_device);
}

bool Run::needs_device(const Op& op) const {
  if (!device_) return false;
  if (op.kind == ENCODE) return on_device(op.block);
  for (int32_t frame : {op.frame, op.other})
    if (frame != NONE && frames_[frame].on_device) return true;
  for (int32_t block : {op.block, op.into})
    if (block != NONE && on_device(block)) return true;
  return false;
}

}  // namespace engine
}  // namespace compcoll
