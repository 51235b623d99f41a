#include "device.h"

#include <algorithm>
#include <cstring>

#include "device_blocks.h"

namespace compcoll {
namespace engine {
namespace {

// Streams for each direction, so that a launch overlaps with the copies of others.
constexpr size_t most_lanes = 4;
// What one launch takes together, and what all of a run's may have of a device at a time.
constexpr uint64_t most_launched = 8 << 20, most_in_flight = 128 << 20;
constexpr size_t most_jobs = 65535;  // in a grid

}  // namespace

DeviceWork::DeviceWork(Coder& coder, Coder& inside, Pool& pool, std::shared_ptr<Marks> marks, bool direct)
    : coder_(coder), inside_coder_(inside), pool_(pool), marks_(std::move(marks)), direct_(direct) {}

// What is under way may still use its memory, which is kept for good then.
DeviceWork::~DeviceWork() {
  if (under_way()) {
    for (auto& launch : launches_) launch.release();
    return;
  }
  for (const auto& lane : lanes_) lane->gpu->put_stream(lane->stream);
}

// -- streams

DeviceWork::Lane* DeviceWork::lane(Gpu* gpu, bool out) {
  within_->enter(*gpu);
  Lane* best = nullptr;
  size_t n = 0;
  for (const auto& one : lanes_) {
    if (one->gpu != gpu || one->out != out) continue;
    if (!best || one->waiting.size() < best->waiting.size()) best = one.get();
    n++;
  }
  if (best && (best->waiting.empty() || n >= most_lanes)) return best;
  lanes_.push_back(std::make_unique<Lane>(Lane{gpu, gpu->take_stream(), out, {}}));
  marks_->precede(gpu, lanes_.back()->stream);
  return lanes_.back().get();
}

// The machine, or all of the launch, goes on behind what is in the stream so far.
void DeviceWork::await(Lane* lane, Machine* machine, Launch* launch) {
  Gpu& gpu = *lane->gpu;
  void* event = gpu.take_event();
  gpu.record(event, lane->stream);
  lane->waiting.push_back({event, machine, launch});
}

bool DeviceWork::poll() {
  bool moved = false;
  for (size_t i = 0; i < lanes_.size(); i++) {
    Lane& lane = *lanes_[i];
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
      // The launch ends with the last of its machines.
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
  while (launch_pending()) moved = true;
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
      Lane* in = lane(op.gpu, false);
      machine->header = pinned().get(HEADER_NBYTES);
      op.gpu->to_host(machine->header, reinterpret_cast<Address>(op.frame->memory), HEADER_NBYTES,
                      in->stream);
      machine->state = State::HEADER;
      return await(in, machine, nullptr);
    }
    default: return copy(machine);
  }
}

// At its begin, or behind an event of a GPU.
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
      case State::SIZE:
        if (op.kind == ADD) return look_at_terms(machine);
        return fetch_frame(machine, machine->launch->results()[machine->job].nbytes);
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

// -- launches

const DeviceWork::Plan* DeviceWork::plan(Gpu* gpu, Verb verb, uint64_t codec, uint32_t dtype, uint32_t ndim,
                                         const uint64_t* params) {
  static const uint64_t zfp = packed_name("zfp"), bfp = packed_name("bfp"), szp = packed_name("szp");
  static std::mutex mutex;
  static auto& plans = *new std::deque<Plan>;  // other threads may use them when the process ends
  // What names of kernels depend on.
  const uint64_t words[] = {params && (codec == zfp || codec == bfp) ? params[0] : 0,
                            params && codec == szp && verb == Verb::ENCODE ? uint64_t(params[1] != 0) : 0};
  std::lock_guard<std::mutex> lock(mutex);
  const uint64_t generation = gpu->generation();
  for (const Plan& one : plans)
    if (one.gpu == gpu && one.verb == verb && one.packed == codec && one.dtype == dtype && one.ndim == ndim &&
        one.words[0] == words[0] && one.words[1] == words[1] &&
        (one.complete || one.generation == generation))
      return &one;
  Plan made = {gpu, verb, codec, {words[0], words[1]}, dtype, ndim, generation, name_of(codec), false, {}};
  KernelNames names;
  switch (verb) {
    case Verb::ENCODE: names = encoders(made.codec, dtype, words, ndim); break;
    case Verb::DECODE: names = decoders(made.codec, dtype, words, false, ndim); break;
    case Verb::DECODE_ADD: names = decoders(made.codec, dtype, words, true, ndim); break;
    case Verb::SUM: names = adders(made.codec, dtype); break;
    case Verb::CONVERT: names = converters(uint32_t(codec), dtype); break;
    case Verb::FIND_LARGEST: names = largest_kernel(dtype); break;
    case Verb::GATHER: names = copying_kernel(); break;
  }
  made.complete = !names.empty();
  for (const KernelName& name : names) {
    made.kernels.push_back({gpu->find_kernel(name.name), name.per_block, name.threads, name.by_nbytes});
    made.complete = made.complete && made.kernels.back().function;
  }
  plans.push_front(std::move(made));
  return &plans.front();
}

// Launches it with what is like it; the host carries it out where kernels are missing, of what is `found` too:
// the type of which the largest magnitude is wanted.
void DeviceWork::enqueue(Machine* machine, uint32_t found) {
  Gpu* gpu = machine->op.gpu;
  if (!machine->plan->complete || (found && !plan(gpu, Verb::FIND_LARGEST, 0, found)->complete))
    return bring_down(machine);
  pending_.push_back(machine);
}

// Bytes of its device that an operation that was not started takes.
uint64_t DeviceWork::needs(const Machine& machine) const {
  const DeviceOp& op = machine.op;
  switch (machine.plan->verb) {
    case Verb::ENCODE: return rounded(HEADER_NBYTES + op.block.nbytes() + SLACK);
    case Verb::DECODE:
    case Verb::DECODE_ADD: return op.frame->nbytes;
    case Verb::SUM: return 3 * rounded(HEADER_NBYTES + op.block.nbytes() + SLACK);
    default: return 0;
  }
}

// Starts what one launch can do together; false where there is nothing, or no room for it yet.
bool DeviceWork::launch_pending() {
  if (pending_.empty()) return false;
  uint64_t nbytes = 0;
  size_t n = 0;
  const Plan* plan = pending_[0]->plan;
  const auto end = std::stable_partition(pending_.begin(), pending_.end(), [&](const Machine* machine) {
    const bool fits = machine->plan == plan && nbytes < most_launched && n < most_jobs / 2;
    if (fits) n++, nbytes += std::max(needs(*machine), machine->op.block.nbytes());
    return fits;
  });
  if (in_flight_ && in_flight_ + nbytes > most_in_flight) return false;
  const std::vector<Machine*> group(pending_.begin(), end);
  pending_.erase(pending_.begin(), end);
  within_->enter(*plan->gpu);
  try {
    switch (plan->verb) {
      case Verb::ENCODE: encode_group(group); break;
      case Verb::DECODE:
      case Verb::DECODE_ADD: decode_group(group); break;
      case Verb::SUM: sum_group(group); break;
      case Verb::CONVERT: convert_group(group); break;
      default: sample_group(group);
    }
  } catch (const std::bad_alloc&) {  // the host may have what the device has not
    for (Machine* machine : group) {
      release(machine);
      if (machine->op.made) drop_frame(machine);
      bring_down(machine);
    }
  }
  return true;
}

DeviceWork::Launch* DeviceWork::new_launch(const std::vector<Machine*>& group, bool out, size_t n_jobs,
                                           uint64_t nbytes) {
  Gpu* gpu = group[0]->op.gpu;
  Launch* made;
  if (idle_launches_.empty()) {
    launches_.push_back(std::make_unique<Launch>());
    idle_launches_.push_back(launches_.back().get());
  }
  made = idle_launches_.back();
  made->gpu = gpu;
  made->lane = lane(gpu, out);
  made->n_jobs = n_jobs;
  made->nbytes = rounded(made->control_nbytes()) + nbytes;
  made->memory = nullptr;
  made->control = pinned().get(made->control_nbytes());
  try {
    made->memory = gpu->memory().get(made->nbytes);
  } catch (const std::bad_alloc&) {
    pinned().put(made->control, 0);
    throw;
  }
  idle_launches_.pop_back();
  memset(made->control, 0, made->control_nbytes());
  for (size_t i = 0; i < n_jobs; i++) made->jobs()[i].result = made->at(i * sizeof(Result));
  made->machines = group;
  made->users = group.size();
  in_flight_ += made->nbytes;
  for (size_t i = 0; i < group.size(); i++) group[i]->launch = made, group[i]->job = i;
  return made;
}

// A machine needs the memory of its launch no more.
void DeviceWork::release(Machine* machine) {
  Launch* launch = machine->launch;
  machine->launch = nullptr;
  if (!launch || --launch->users) return;
  for (uint8_t* memory : launch->staged) pinned().put(memory, 0);
  launch->staged.clear();
  pinned().put(launch->control, 0);
  launch->gpu->memory().put(launch->memory, launch->nbytes);
  in_flight_ -= launch->nbytes;
  idle_launches_.push_back(launch);
}

// Copies jobs and results to the device, and clears the scratch memory behind them.
void DeviceWork::upload(Launch* launch, uint64_t scratch_nbytes) {
  Gpu& gpu = *launch->gpu;
  void* stream = launch->lane->stream;
  gpu.to_device(launch->at(0), launch->control, launch->control_nbytes(), stream);
  if (scratch_nbytes) gpu.clear(launch->at(rounded(launch->control_nbytes())), scratch_nbytes, stream);
}

void DeviceWork::launch_kernels(Launch* launch, const Plan& plan, size_t first, size_t n, bool sums_up,
                                bool only_sums_up) {
  Gpu& gpu = *launch->gpu;
  uint64_t most = 0, most_nbytes = 0;
  for (size_t i = first; i < first + n; i++) {
    most = std::max(most, launch->jobs()[i].n);
    most_nbytes = std::max(most_nbytes, launch->jobs()[i].nbytes);
  }
  const uint64_t blocks = std::max<uint64_t>(gpu.max_grid() / n, 1);
  for (const Kernel& kernel : plan.kernels) {
    if (kernel.by_nbytes ? !sums_up : only_sums_up) continue;
    const uint64_t size = kernel.by_nbytes ? most_nbytes : most;
    const uint64_t grid = std::min(std::max<uint64_t>((size + kernel.per_block - 1) / kernel.per_block, 1),
                                   std::max<uint64_t>(blocks * 128 / kernel.threads, 1));
    const Address jobs = launch->at(launch->n_jobs * sizeof(Result) + first * sizeof(Job));
    gpu.launch(kernel, unsigned(grid), unsigned(n), jobs, launch->lane->stream);
  }
}

void DeviceWork::fetch_results(Launch* launch) {
  Gpu& gpu = *launch->gpu;
  gpu.to_host(launch->control, launch->at(0), launch->n_jobs * sizeof(Result), launch->lane->stream);
}

}  // namespace engine
}  // namespace compcoll
