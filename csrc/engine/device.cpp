#include "device.h"

#include <algorithm>
#include <cstring>

#include "device_blocks.h"

namespace compcoll {
namespace engine {
namespace {

// Streams per direction, so that a launch overlaps with copies of other launches.
constexpr size_t most_lanes = 4;

}  // namespace

DeviceWork::DeviceWork(Coder& coder, Coder& inside, Pool& pool, std::shared_ptr<Marks> marks, bool direct)
    : coder_(coder), inside_coder_(inside), pool_(pool), marks_(std::move(marks)), direct_(direct) {}

// Operations in flight may still use the memory of launches, which is never freed then.
DeviceWork::~DeviceWork() {
  if (under_way()) {
    for (auto& launch : launches_) launch.release();
    return;
  }
  for (const auto& lane : lanes_) lane->gpu->put_stream(lane->stream);
}

// -- streams

DeviceWork::EventStream* DeviceWork::lane(Gpu* gpu, bool out) {
  within_->enter(*gpu);
  EventStream* best = nullptr;
  size_t n = 0;
  for (const auto& one : lanes_) {
    if (one->gpu != gpu || one->out != out) continue;
    if (!best || one->waiting.size() < best->waiting.size()) best = one.get();
    n++;
  }
  if (best && (best->waiting.empty() || n >= most_lanes)) return best;
  lanes_.push_back(std::make_unique<EventStream>(EventStream{gpu, gpu->take_stream(), out, {}}));
  marks_->precede(gpu, lanes_.back()->stream);
  return lanes_.back().get();
}

// The machine, or each machine of the launch, advances once the stream's work so far has completed.
void DeviceWork::await(EventStream* lane, Machine* machine, Launch* launch) {
  Gpu& gpu = *lane->gpu;
  void* event = gpu.take_event();
  gpu.record(event, lane->stream);
  lane->waiting.push_back({event, machine, launch});
}

bool DeviceWork::poll() {
  bool moved = false;
  for (size_t i = 0; i < lanes_.size(); i++) {
    EventStream& lane = *lanes_[i];
    Gpu& gpu = *lane.gpu;
    while (!lane.waiting.empty()) {
      const Waiting one = lane.waiting.front();
      within_->enter(gpu);
      if (!gpu.has_come(one.event)) break;
      lane.waiting.pop_front();
      gpu.put_event(one.event);
      moved = true;
      if (one.machine) {
        advance(one.machine, &gpu);
        continue;
      }
      // The launch is released with the last of its machines.
      group_ = one.launch->machines;
      for (Machine* machine : group_) advance(machine, &gpu);
    }
  }
  return moved;
}

bool DeviceWork::step(std::vector<DeviceDone>* done) {
  Within within;
  within_ = &within;
  done_ = done;
  bool moved = poll();
  for (const DeviceOp& op : begun_) start(op), moved = true;
  begun_.clear();
  moved = launch_pending() || moved;
  for (Machine* machine : copies_) copy_on_device(machine);
  copies_.clear();
  within_ = nullptr;
  return moved;
}

// -- operations

void DeviceWork::start(const DeviceOp& op) {
  if (idle_.empty()) {
    all_.push_back(std::make_unique<Machine>());
    idle_.push_back(all_.back().get());
  }
  Machine* machine = idle_.back();
  idle_.pop_back();
  *machine = {};
  machine->op = op;
  machine->coder = op.inside ? &inside_coder_ : &coder_;
  advance(machine);
}

void DeviceWork::begin(Machine* machine) {
  const DeviceOp& op = machine->op;
  switch (op.kind) {
    case ENCODE: {
      const auto& attempts = machine->coder->coding().attempts;
      machine->at = attempts.data(), machine->end = machine->at + attempts.size();
      machine->status = UNSUPPORTED;
      return encode_next(machine);
    }
    case DECODE:
    case DECODE_ADD: return decode(machine);
    case ADD: return sum(machine);
    case RECV: {
      EventStream* in = lane(op.gpu, false);
      machine->header = pinned().get(HEADER_NBYTES);
      op.gpu->to_host(machine->header, reinterpret_cast<Address>(op.frame->memory), HEADER_NBYTES,
                      in->stream);
      machine->state = State::HEADER;
      return await(in, machine, nullptr);
    }
    default: return copy(machine);
  }
}

// Advances a machine from BEGUN, or after a GPU's event.
void DeviceWork::advance(Machine* machine, const Gpu* gpu) {
  const DeviceOp& op = machine->op;
  if (gpu && gpu->failed()) {
    Error error;
    error.problem = Problem::DEVICE;
    error.fault = gpu->fault();
    if (op.made) drop_frame(machine);
    return end(machine, error);
  }
  try {
    switch (machine->state) {
      case State::BEGUN: return begin(machine);
      case State::SAMPLE: return choose(machine);
      case State::SIZE: return op.kind == ADD ? look_at_terms(machine) : look_at_size(machine);
      case State::FRAME: return look_at_frame(machine);
      case State::MAGNITUDE: return look_at_magnitude(machine);
      case State::VALUES: return look_at_values(machine);
      case State::HEADER: return end(machine, coder_.received(machine->header, op.frame->nbytes, op.frame));
      case State::DOWN: return on_host(machine);
      default: return end(machine);
    }
  } catch (const std::bad_alloc&) {
    Error error;
    error.problem = Problem::MEMORY;
    end(machine, error);
  }
}

void DeviceWork::end(Machine* machine, const Error& error) {
  const DeviceOp& op = machine->op;
  if (error && op.made) op.made->nbytes = 0;
  release(machine);
  for (uint8_t* memory : {machine->staged, machine->header})
    if (memory) pinned().put(memory, 0);
  done_->push_back({op.op, error, machine->bound});
  idle_.push_back(machine);
}

void DeviceWork::drop_frame(Machine* machine) {
  Frame& frame = *machine->op.made;
  if (frame.memory) frame.allocator->put(frame.memory, frame.room);
  frame.memory = nullptr;
  frame.gpu = nullptr;
  if (machine->header) pinned().put(machine->header, 0);
  machine->header = nullptr;
}

}  // namespace engine
}  // namespace compcoll
