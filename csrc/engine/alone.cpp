#include "alone.h"

namespace compcoll {
namespace engine {
namespace {

Gpu* gpu_or_none(int number) { return number == NO_GPU ? nullptr : Gpu::of(number); }

}  // namespace

Alone::Alone(const Coding& coding, int gpu, const std::vector<void*>& streams)
    : coding_(coding),
      pool_(0),
      coder_(coding_, pool_),
      gpu_(Gpu::of(gpu)),
      marks_(std::make_shared<Marks>()),
      work_(coder_, coder_, pool_, marks_, true) {
  if (!marks_->record(gpu_, &error_.fault, streams)) error_.problem = Problem::DEVICE;
}

Alone::~Alone() {
  if (owns_ && frame_.memory && !work_.under_way()) frame_.allocator->put(frame_.memory, frame_.room);
}

void Alone::encode(void* data, uint32_t dtype, const std::vector<uint64_t>& shape, double carried,
                   bool checksum) {
  DeviceOp op;
  op.kind = ENCODE;
  op.block = {static_cast<uint8_t*>(data), 1, dtype};
  for (uint64_t n : shape) op.block.n *= n;
  if (shape.size() > 1) {
    op.block.row = shape.back();
    op.block.plane = shape.size() > 2 ? shape[1] * shape[2] : shape.back();
  }
  op.gpu = gpu_;
  op.made = &frame_;
  op.carried = carried;
  frame_.checked = checksum;
  owns_ = true;
  begin(op);
}

void Alone::open(void* frame, uint64_t nbytes, int gpu) {
  frame_.memory = static_cast<uint8_t*>(frame);
  frame_.nbytes = nbytes;
  frame_.gpu = gpu_or_none(gpu);
  if (!frame_.gpu) {
    error_ = coder_.received(frame_.memory, nbytes, &frame_);
    return;
  }
  DeviceOp op;
  op.kind = RECV;
  op.gpu = frame_.gpu;
  op.frame = &frame_;
  begin(op);
}

void Alone::decode(void* data, uint32_t dtype, uint64_t n, int gpu, bool adds) {
  DeviceOp op;
  op.kind = adds ? DECODE_ADD : DECODE;
  op.block = {static_cast<uint8_t*>(data), n, dtype};
  op.gpu = gpu_or_none(gpu);
  op.frame = &frame_;
  if (coder_.fits(frame_, op.block, adds, &error_)) begin(op);
}

void Alone::copy(void* to, int to_gpu, void* from, int from_gpu, uint64_t nbytes) {
  DeviceOp op;
  op.kind = COPY;
  op.block = {static_cast<uint8_t*>(from), nbytes, UINT8};
  op.into = {static_cast<uint8_t*>(to), nbytes, UINT8};
  op.gpu = gpu_or_none(from_gpu), op.into_gpu = gpu_or_none(to_gpu);
  begin(op);
}

void Alone::begin(DeviceOp op) {
  if (error_) return;
  ended_ = false;
  work_.begin(op);
}

bool Alone::step() {
  if (ended_) return true;
  done_.clear();
  work_.step(&done_);
  if (done_.empty()) return false;
  if (!error_) error_ = done_[0].error;
  return ended_ = true;
}

}  // namespace engine
}  // namespace compcoll
