// The part of a run that deals with GPU memory.
#include "clock.h"
#include "run.h"

namespace compcoll {
namespace engine {

// Hands all ready operations to the device, and collects completed ones. Decoded values that no other
// operation waits for are written together with the next frames to decode, or after the last of these.
bool Run::step_device() {
  bool moved = false;
  size_t n_begun = 0;
  bool encodes = false, decodes = false;
  auto next = [&] {
    int32_t op = take(device_work_);
    if (op == NONE && (decodes || !device_decodes_)) op = take(device_idle_);
    return op;
  };
  for (int32_t op; (op = next()) != NONE; moved = true) {
    if (is_device_decode(schedule_->ops[op])) decodes = true, device_decodes_--;
    DeviceOp one;
    OpResult nothing_left;
    one.op = op;
    try {
      if (hand_over(op, &one, &nothing_left.error)) {
        device_->begin(one);
        encodes = encodes || one.kind == ENCODE || one.kind == ADD;
        n_begun++;
        continue;
      }
    } catch (const std::bad_alloc&) { nothing_left.error.problem = Problem::MEMORY; }
    finish(op, nothing_left);
    busy_--;
  }
  if (!n_begun && !device_->under_way()) return moved;
  completed_.clear();
  const double start = now();
  moved = device_->step(&completed_) || moved;
  const double seconds = now() - start;
  for (const DeviceDone& done : completed_) completed(done);
  std::lock_guard<std::mutex> lock(mutex_);
  (encodes ? stats_.encode_seconds : stats_.decode_seconds) += moved ? seconds : 0;
  is_on_device_ = device_->under_way() > 0;
  return moved;
}

// Describes an operation for the device; false if the device has nothing to do.
bool Run::hand_over(int32_t index, DeviceOp* one, Error* error) {
  const Op& op = schedule_->ops[index];
  auto fits = [&](int32_t i, const BlockRef& b, bool adds) {
    return coder_.fits(frames_[i], {nullptr, uint64_t(b.n), dtype_of(b)}, adds, error);
  };
  auto take = [&](const BlockRef& block) {
    one->gpu = gpu_of(block);
    one->block = span(block);
  };
  if (op.frame != NONE) one->frame = &frames_[op.frame];
  one->kind = Kind(op.kind);
  one->base = base_of(op);
  const BlockRef& block = schedule_->blocks[op.block];
  switch (op.kind) {
    case ENCODE: {
      Frame& frame = frames_[op.frame];
      frame.checked = has_checksum(op);
      one->made = &frame;
      one->carried = error_of(op.block);
      one->inside = op.inside;
      if (op.into != NONE) {
        const BlockRef& into = schedule_->blocks[op.into];
        one->taken = into.n == block.n && dtype_of(into) == dtype_of(block);
      }
      take(block);
      return !failed_;
    }
    case ADD:
      one->made = &frames_[op.sum];
      one->other = &frames_[op.other];
      if (failed_ || !fits(op.frame, block, false) || !fits(op.other, block, false)) return false;
      one->gpu = gpu_of(block);
      one->block = {nullptr, uint64_t(block.n), dtype_of(block)};
      return true;
    case DECODE: {
      const BlockRef place = this->place(op.block, frames_[op.frame]);
      if (!fits(op.frame, place, false)) return false;
      take(place);
      return true;
    }
    case DECODE_ADD:
      if (!fits(op.frame, block, true)) return false;
      take(block);
      return true;
    case RECV: one->gpu = gpu_of(block); return true;
    case WRITE_DECODED:
      if (frames_[op.frame].settled || frames_[op.frame].poisoned()) return false;
      if (is_exact(frames_[op.frame])) return hand_over_copy(op, one);
      one->kind = DECODE;
      one->base = nullptr;
      if (!fits(op.frame, schedule_->blocks[op.into], false)) return false;
      take(schedule_->blocks[op.into]);
      return true;
    default: return hand_over_copy(op, one);
  }
}

bool Run::hand_over_copy(const Op& op, DeviceOp* one) {
  const BlockRef &from = schedule_->blocks[op.block], &to = schedule_->blocks[op.into];
  one->kind = COPY;
  one->frame = nullptr;
  one->gpu = gpu_of(from), one->into_gpu = gpu_of(to);
  one->block = span(from), one->into = span(to);
  if (one->block.data != one->into.data || one->block.dtype != one->into.dtype) return true;
  errors_[op.into] = error_of(op.block);
  return false;
}

void Run::completed(const DeviceDone& done) {
  const Op& op = schedule_->ops[done.op];
  OpResult outcome;
  outcome.error = done.error;
  if (!done.error) switch (op.kind) {
      case DECODE: errors_[op.block] = done.bound; break;
      case DECODE_ADD: errors_[op.block] += done.bound; break;
      case WRITE_DECODED:
        errors_[op.into] = done.bound + (is_exact(frames_[op.frame]) ? errors_[op.block] : 0);
        break;
      case COPY:
      case ROUND: errors_[op.into] = error_of(op.block) + done.bound; break;
      case RECV: outcome.error = check_end(done.op); break;
      default: break;
    }
  finish(done.op, outcome);
  busy_--;
}

bool Run::is_device_decode(const Op& op) const {
  return (op.kind == DECODE || op.kind == DECODE_ADD) && on_device(op.block);
}

Gpu* Run::gpu_of(const BlockRef& block) const {
  return block.buffer < schedule_->n_buffers ? buffers_[block.buffer].gpu : scratch_gpu_;
}

bool Run::needs_device(const Op& op) const {
  if (!device_) return false;
  if (op.kind == ENCODE) return on_device(op.block);
  for (int32_t frame : {op.frame, op.other})
    if (frame != NONE && frames_[frame].gpu) return true;
  for (int32_t block : {op.block, op.into})
    if (block != NONE && on_device(block)) return true;
  return false;
}

}  // namespace engine
}  // namespace compcoll
