#include "device.h"

#include <algorithm>
#include <cstring>

#include "dense.h"
#include "rounding.h"

namespace compcoll {
namespace engine {
namespace {

// Streams for each direction, so that a launch overlaps with the copies of others.
constexpr size_t most_lanes = 4;
// What one launch takes together, and what all of a run's may have of a device at a time.
constexpr uint64_t most_launched = 8 << 20, most_in_flight = 128 << 20;
constexpr size_t most_jobs = 65535;  // in a grid
// Multiples of which frames and scratch memory begin at.
constexpr uint64_t unit = 128;
// The parts from which `lossless` chooses, as csrc/cpu/lossless.cpp takes them.
constexpr uint64_t most_sampled = 32768, share_sampled = 32;
enum Choice : uint64_t { RAW, MPC, FLOAT };

uint64_t rounded(uint64_t nbytes) { return (nbytes + unit - 1) / unit * unit; }

Address address_of(const Span& block) { return reinterpret_cast<Address>(block.data); }

bool is_complex(uint32_t dtype) { return dtype >= COMPLEX64; }
uint32_t real_nbytes(uint32_t dtype) { return itemsize(dtype) / (is_complex(dtype) ? 2 : 1); }
uint64_t reals(const Span& block) { return block.n * (is_complex(block.dtype) ? 2 : 1); }
bool is_aligned(const Span& block) { return address_of(block) % real_nbytes(block.dtype) == 0; }

// A largest magnitude as its kernel leaves it.
double magnitude(uint32_t dtype, uint64_t bits, const Level& level) { return level.largest(dtype, &bits, 1); }

// Whether kernels read a frame's payload where it lies.
bool is_in_place(const Frame& frame) {
  return frame.on_device && (reinterpret_cast<Address>(frame.memory) + HEADER_NBYTES) % 16 == 0;
}

// The fault of a payload, as the device found it.
Error damage(const Header& header, const Result& result) {
  Error error;
  error.header = header;
  if (header.has_checksum && result.checksum != header.checksum) {
    error.problem = Problem::CHECKSUM;
  } else if (result.bad) {
    error.problem = Problem::PAYLOAD;
    error.status = BAD_STREAM;
  }
  return error;
}

struct Sample { uint64_t piece, n, step; };
Sample sample_of(const Span& block) {
  const uint64_t nbytes = block.nbytes();
  uint64_t piece = 1024 * (real_nbytes(block.dtype) == 8 ? 8 : 4);
  const uint64_t n = std::max<uint64_t>(std::min(nbytes / (piece * share_sampled), most_sampled / piece), 1);
  piece = std::min(piece, nbytes);
  return {piece, n, n > 1 ? (nbytes - piece) / (n - 1) / 16 * 16 : 0};
}

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
void DeviceWork::await(Lane* lane, Machine* machine, Launch* launch, bool last) {
  Gpu& gpu = *lane->gpu;
  void* event = gpu.take_event();
  if (!gpu.failed()) gpu.check(driver()->event_record(event, lane->stream), "cuEventRecord");
  lane->waiting.push_back({event, machine, launch, last});
}

bool DeviceWork::poll() {
  bool moved = false;
  for (size_t i = 0; i < lanes_.size(); i++) {
    Lane& lane = *lanes_[i];
    Gpu& gpu = *lane.gpu;
    while (!lane.waiting.empty()) {
      const Waiting one = lane.waiting.front();
      within_->enter(gpu);
      if (!gpu.failed()) {
        const int status = driver()->event_query(one.event);
        if (status == NOT_READY) break;
        gpu.check(status, "cuEventQuery");
      }
      lane.waiting.pop_front();
      gpu.put_event(one.event);
      moved = true;
      if (one.machine) {
        advance(one.machine);
        continue;
      }
      // The launch ends with the last of its machines.
      group_ = one.launch->machines;
      for (Machine* machine : group_) advance(machine);
    }
  }
  return moved;
}

bool DeviceWork::is_last() const {
  if (!begun_.empty() || !pending_.empty()) return false;
  for (const auto& lane : lanes_)
    for (const Waiting& one : lane->waiting)
      if (!one.last) return false;
  return true;
}

std::vector<std::pair<Gpu*, void*>> DeviceWork::ends() const {
  std::vector<std::pair<Gpu*, void*>> events;
  for (const auto& lane : lanes_)
    if (!lane->waiting.empty()) events.emplace_back(lane->gpu, lane->waiting.back().event);
  return events;
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
  try {
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
        if (!op.gpu->failed())
          op.gpu->check(driver()->to_host(machine->header, reinterpret_cast<Address>(op.frame->memory),
                                          HEADER_NBYTES, in->stream),
                        "cuMemcpyDtoHAsync");
        machine->state = State::HEADER;
        return await(in, machine, nullptr);
      }
      default: return copy(machine);
    }
  } catch (const std::bad_alloc&) {
    Error error;
    error.problem = Problem::MEMORY;
    end(machine, error);
  }
}

// Behind an event.
void DeviceWork::advance(Machine* machine) {
  const DeviceOp& op = machine->op;
  for (Gpu* gpu : {op.gpu, op.into_gpu}) {
    if (!gpu || !gpu->failed()) continue;
    Error error;
    error.problem = Problem::DEVICE;
    error.fault = gpu->fault();
    if (op.made) drop_frame(machine);
    return end(machine, error);
  }
  try {
    switch (machine->state) {
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
  frame.on_device = false;
  if (machine->header) pinned().put(machine->header, 0);
  machine->header = nullptr;
}

// -- launches

const DeviceWork::Plan* DeviceWork::plan(Gpu* gpu, Verb verb, uint64_t codec, uint32_t dtype, uint32_t ndim,
                                         const uint64_t* params) {
  static const uint64_t zfp = packed_name("zfp"), szp = packed_name("szp");
  static std::mutex mutex;
  static auto& plans = *new std::deque<Plan>;  // other threads may use them when the process ends
  // What names of kernels depend on.
  const uint64_t words[] = {params && codec == zfp ? params[0] : 0,
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
  std::vector<Machine*> group;
  uint64_t nbytes = 0;
  size_t kept = 0;
  const Plan* plan = pending_[0]->plan;
  for (Machine* machine : pending_) {
    const bool fits = machine->plan == plan && nbytes < most_launched && group.size() < most_jobs / 2;
    if (!fits) {
      pending_[kept++] = machine;
      continue;
    }
    group.push_back(machine);
    nbytes += std::max(needs(*machine), machine->op.block.nbytes());
  }
  if (in_flight_ && in_flight_ + nbytes > most_in_flight) {
    pending_.insert(pending_.begin() + long(kept), group.begin(), group.end());
    pending_.resize(kept + group.size());
    std::rotate(pending_.begin(), pending_.begin() + long(kept), pending_.end());
    return false;
  }
  pending_.resize(kept);
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
  if (gpu.failed()) return;
  void* stream = launch->lane->stream;
  if (!gpu.check(driver()->to_device(launch->at(0), launch->control, launch->control_nbytes(), stream),
                 "cuMemcpyHtoDAsync"))
    return;
  if (scratch_nbytes)
    gpu.check(driver()->set_bytes(launch->at(rounded(launch->control_nbytes())), 0, scratch_nbytes, stream),
              "cuMemsetD8Async");
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
    if (gpu.failed()) return;
    if (kernel.by_nbytes ? !sums_up : only_sums_up) continue;
    const uint64_t size = kernel.by_nbytes ? most_nbytes : most;
    const uint64_t grid = std::min(std::max<uint64_t>((size + kernel.per_block - 1) / kernel.per_block, 1),
                                   std::max<uint64_t>(blocks * 128 / kernel.threads, 1));
    Address jobs = launch->at(launch->n_jobs * sizeof(Result) + first * sizeof(Job));
    void* arguments[] = {&jobs};
    gpu.check(driver()->launch(kernel.function, unsigned(grid), unsigned(n), 1, kernel.threads, 1, 1, 0,
                               launch->lane->stream, arguments, nullptr),
              "cuLaunchKernel");
  }
}

void DeviceWork::fetch_results(Launch* launch) {
  Gpu& gpu = *launch->gpu;
  if (!gpu.failed())
    gpu.check(driver()->to_host(launch->control, launch->at(0), launch->n_jobs * sizeof(Result),
                                launch->lane->stream),
              "cuMemcpyDtoHAsync");
}

// -- encoding

// Begins with the next codec that is to be tried; with what has no kernels on the host.
void DeviceWork::encode_next(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Coding& coding = machine->coder->coding();
  if (machine->at == machine->end) {
    Error error;
    error.problem = Problem::PAYLOAD;
    error.status = machine->status;
    error.header.dtype = op.block.dtype;
    return end(machine, error);
  }
  const Attempt& one = *machine->at;
  if (one.codec == Attempt::CALLBACK || op.base || !op.block.n || !is_aligned(op.block) ||
      op.block.nbytes() >= most_kernel_nbytes)
    return bring_down(machine);
  const uint32_t ndim = op.block.ndim();
  machine->plan = one.codec == Attempt::CHOOSE
                      ? plan(op.gpu, Verb::GATHER, 0, 0)
                      : plan(op.gpu, Verb::ENCODE, packed_name((*coding.level)->codecs[one.codec]->name),
                             op.block.dtype, ndim, one.params[ndim - 1]);
  if (!machine->plan->complete) return bring_down(machine);
  machine->state = State::PENDING;
  pending_.push_back(machine);
}

void DeviceWork::encode_group(const std::vector<Machine*>& group) {
  const Plan& plan = *group[0]->plan;
  static const uint64_t raw = packed_name("raw");
  uint64_t room = 0, scratch = 0;
  for (const Machine* machine : group) {
    const Span& block = machine->op.block;
    room = std::max(room, rounded(HEADER_NBYTES + block.nbytes() + SLACK));
    scratch += scratch_nbytes(plan.codec, units(plan.codec, reals(block), block.nbytes()));
  }
  const size_t n = group.size();
  Launch* launch = new_launch(group, true, n, rounded(scratch) + (direct_ ? 0 : n * room));
  const uint64_t first = rounded(launch->control_nbytes());
  uint64_t free_scratch = first;
  bool fetches = false;
  for (size_t i = 0; i < n; i++) {
    Machine& m = *group[i];
    const Span& block = m.op.block;
    Frame& frame = *m.op.made;
    const uint32_t ndim = block.ndim();
    const uint64_t* params = m.at->params[ndim - 1];
    const uint64_t shape[] = {block.dim(0), block.dim(1), block.dim(2)};
    Job& job = launch->jobs()[i];
    Result& result = launch->results()[i];
    if (direct_) {
      frame.memory = m.op.gpu->memory().get(room);
      frame.room = room, frame.allocator = &m.op.gpu->memory(), frame.on_device = true;
    }
    job.src = address_of(block);
    job.dst = (direct_ ? reinterpret_cast<Address>(frame.memory)
                       : launch->at(first + rounded(scratch) + i * room)) +
              HEADER_NBYTES;
    job.nbytes = block.nbytes();
    job.n = units(plan.codec, reals(block), block.nbytes());
    job_params(plan.codec, block.dtype, ndim, shape, params, job.params);
    if (const uint64_t nbytes = scratch_nbytes(plan.codec, job.n)) {
      job.scratch = launch->at(free_scratch);
      free_scratch += nbytes;
    }
    const Header header = {plan.packed,
                           block.dtype,
                           ndim,
                           {shape[0], shape[1], shape[2]},
                           {params[0], params[1]},
                           0,
                           m.op.carried,
                           0,
                           frame.checked,
                           m.refused};
    outline(header, result.header);
    result.wanted = frame.checked;
    if (plan.packed == raw) result.nbytes = int64_t(block.nbytes());  // whose kernel finds nothing out
    const int64_t known = ndim > 1 ? -1 : payload_nbytes(plan.codec, block.dtype, block.n, params);
    m.nbytes = known >= 0 && uint64_t(known) <= block.nbytes() ? HEADER_NBYTES + uint64_t(known) : 0;
    m.bound = 0;
    fetches = fetches || !m.nbytes || (m.coder->sums() && !m.op.taken);
  }
  upload(launch, scratch);
  launch_kernels(launch, plan, 0, n);
  if (fetches) fetch_results(launch);
  bool waits = false;
  for (Machine* machine : group) {
    machine->state = State::SIZE;
    if (machine->nbytes) fetch_frame(machine, int64_t(machine->nbytes - HEADER_NBYTES));
    else waits = true;
  }
  if (!waits) return;
  // Of one group either all sizes are known or, as a rule, none.
  launch->machines.clear();
  for (Machine* machine : group)
    if (machine->state == State::SIZE) launch->machines.push_back(machine);
  await(launch->lane, nullptr, launch);
}

// Copies a frame whose size is known to the host, or its header; else there is a status in its place.
void DeviceWork::fetch_frame(Machine* machine, int64_t nbytes) {
  Frame& frame = *machine->op.made;
  Launch& launch = *machine->launch;
  Gpu& gpu = *launch.gpu;
  if (nbytes < 0 || uint64_t(nbytes) > machine->op.block.nbytes())
    return refuse(machine, nbytes < 0 ? nbytes : int64_t(TOO_LARGE));
  machine->nbytes = HEADER_NBYTES + uint64_t(nbytes);
  // Where the frame lies on the device.
  const Address from = launch.jobs()[machine->job].dst - HEADER_NBYTES;
  uint8_t* to;
  uint64_t n = machine->nbytes;
  if (direct_) {
    n = HEADER_NBYTES;
    to = machine->header = pinned().get(n);
  } else {
    frame.memory = nullptr;
    to = pinned().get(n);
    frame.memory = to, frame.room = n, frame.allocator = &pinned();
  }
  within_->enter(gpu);
  if (!gpu.failed()) gpu.check(driver()->to_host(to, from, n, launch.lane->stream), "cuMemcpyDtoHAsync");
  machine->state = State::FRAME;
  await(launch.lane, machine, nullptr);
}

void DeviceWork::look_at_frame(Machine* machine) {
  const DeviceOp& op = machine->op;
  Frame& frame = *op.made;
  const uint8_t* header = direct_ ? machine->header : frame.memory;
  uint32_t magic;
  memcpy(&magic, header, sizeof magic);
  if (!magic) {
    int64_t status;
    memcpy(&status, header + 56, sizeof status);
    return refuse(machine, status);
  }
  const Error error = machine->coder->received(header, machine->nbytes, &frame);
  if (error) return end(machine, error);
  if (op.kind == ADD || !machine->coder->sums() || op.taken) return end(machine);
  const double bound = machine->launch->results()[machine->job].bound;
  if (!machine->coder->may_overflow(bound)) return end(machine);
  release(machine);
  if (machine->coder->coding().dtype != FLOAT16) return refuse(machine, UNREPRESENTABLE);
  const Plan* finds = plan(op.gpu, Verb::FIND_LARGEST, 0, op.block.dtype);
  if (!finds->complete) {
    drop_frame(machine);
    return bring_down(machine);
  }
  machine->bound = bound;
  Launch* launch = new_launch({machine}, true, 1, 0);
  Job& job = launch->jobs()[0];
  job.src = address_of(op.block), job.n = reals(op.block);
  upload(launch, 0);
  launch_kernels(launch, *finds, 0, 1);
  fetch_results(launch);
  machine->state = State::MAGNITUDE;
  await(launch->lane, machine, nullptr);
}

void DeviceWork::look_at_magnitude(Machine* machine) {
  const uint64_t bits = machine->launch->results()[0].extent[0];
  const double most = magnitude(machine->op.block.dtype, bits, coder_.level());
  const double bound = machine->bound;
  machine->bound = 0;
  if (!machine->coder->overflows(bound, most)) return end(machine);
  refuse(machine, UNREPRESENTABLE);
}

// There is no frame of this codec.
void DeviceWork::refuse(Machine* machine, int64_t status) {
  drop_frame(machine);
  release(machine);
  if (machine->op.kind == ADD) return bring_down(machine);
  machine->status = status;
  if ((status == NONFINITE || status == UNREPRESENTABLE) && !machine->coder->coding().lossless)
    machine->refused = true;
  machine->at++;
  encode_next(machine);
}

void DeviceWork::sample_group(const std::vector<Machine*>& group) {
  const size_t n = group.size();
  Launch* launch = new_launch(group, true, n, n * most_sampled);
  const uint64_t first = rounded(launch->control_nbytes());
  for (size_t i = 0; i < n; i++) {
    const Sample sample = sample_of(group[i]->op.block);
    Job& job = launch->jobs()[i];
    job.src = address_of(group[i]->op.block), job.dst = launch->at(first + i * most_sampled);
    job.n = sample.n * sample.piece;
    job.params[0] = sample.piece, job.params[1] = sample.step;
    group[i]->state = State::SAMPLE;
  }
  launch->staged.push_back(pinned().get(n * most_sampled));
  upload(launch, 0);
  launch_kernels(launch, *group[0]->plan, 0, n);
  Gpu& gpu = *launch->gpu;
  if (!gpu.failed())
    gpu.check(driver()->to_host(launch->staged[0], launch->at(first), n * most_sampled, launch->lane->stream),
              "cuMemcpyDtoHAsync");
  await(launch->lane, nullptr, launch);
}

// Chooses lossless codecs by the sample.
void DeviceWork::choose(Machine* machine) {
  static const uint64_t lossless = packed_name("lossless");
  static const uint64_t names[] = {packed_name("raw"), packed_name("mpc"), packed_name("float")};
  const Span& block = machine->op.block;
  const Coder& coder = *machine->coder;
  const Sample sample = sample_of(block);
  const uint64_t n = sample.n * sample.piece / itemsize(block.dtype);
  const uint64_t row = block.ndim() > 1 ? block.dim(block.ndim() - 1) : 0;
  Args args = {block.dtype, 1, {n, 1, 1}, {1, row}, 0, 0, 0, nullptr};
  uint8_t nothing;
  coder.level().codecs[coder.index_of(lossless)]->encode(
      &args, machine->launch->staged[0] + machine->job * most_sampled, &nothing);
  const uint64_t choice = args.params[0];
  const uint64_t param = choice == MPC ? args.params[1] : choice == FLOAT ? 1 : 0;
  size_t n_own = 0;
  for (const uint64_t one : {choice, uint64_t(RAW)}) {
    if (n_own && choice == RAW) break;
    Attempt& own = machine->own[n_own++];
    own = {};
    own.codec = coder.index_of(names[one]);
    for (auto& params : own.params) params[0] = one == choice ? param : 0;
  }
  release(machine);
  machine->at = machine->own, machine->end = machine->own + n_own;
  encode_next(machine);
}

// -- decoding

// Copies the payload of a frame to a launch's memory.
void DeviceWork::send_payload(Launch* launch, const Frame& frame, Address to) {
  Gpu& gpu = *launch->gpu;
  const uint8_t* payload = frame.memory + HEADER_NBYTES;
  const uint64_t nbytes = frame.header.payload_nbytes;
  if (frame.on_device) {
    if (!gpu.failed())
      gpu.check(driver()->on_device(to, reinterpret_cast<Address>(payload), nbytes, launch->lane->stream),
                "cuMemcpyDtoDAsync");
    return;
  }
  if (frame.allocator != &pinned() || frame.lent) {  // which the driver would have the host wait for
    launch->staged.push_back(pinned().get(nbytes));
    memcpy(launch->staged.back(), payload, nbytes);
    payload = launch->staged.back();
  }
  if (!gpu.failed())
    gpu.check(driver()->to_device(to, payload, nbytes, launch->lane->stream), "cuMemcpyHtoDAsync");
}

void DeviceWork::decode(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Frame& frame = *op.frame;
  const Header& h = frame.header;
  const bool adds = op.kind == DECODE_ADD;
  machine->clears = !adds && h.dtype != op.block.dtype;  // 16-bit floats into an accumulator
  if (!op.gpu || op.base || !op.block.n || !is_aligned(op.block) || !is_size_sound(h))
    return bring_down(machine);
  const Verb verb = adds || machine->clears ? Verb::DECODE_ADD : Verb::DECODE;
  machine->plan = plan(op.gpu, verb, h.codec, h.dtype, h.ndim ? h.ndim : 1, h.params);
  const bool finds = adds && op.block.dtype >= FLOAT16;
  if (!machine->plan->complete || (finds && !plan(op.gpu, Verb::FIND_LARGEST, 0, op.block.dtype)->complete))
    return bring_down(machine);
  machine->state = State::PENDING;
  pending_.push_back(machine);
}

void DeviceWork::decode_group(const std::vector<Machine*>& group) {
  const Plan& own = *group[0]->plan;
  const DeviceOp& first_op = group[0]->op;
  const size_t n = group.size();
  const uint32_t dtype = first_op.block.dtype;
  bool finds = false, sums_up = false;
  uint64_t scratch = 0, room = 0;
  for (const Machine* machine : group) {
    const Frame& frame = *machine->op.frame;
    const Header& h = frame.header;
    finds = finds || (machine->op.kind == DECODE_ADD && dtype >= FLOAT16);
    sums_up = sums_up || h.has_checksum;
    scratch +=
        scratch_nbytes(own.codec, units(own.codec, h.size() * (is_complex(h.dtype) ? 2 : 1), h.nbytes()));
    if (!is_in_place(frame)) room += rounded(h.payload_nbytes);
  }
  Launch* launch = new_launch(group, false, finds ? 2 * n : n, rounded(scratch) + room);
  Gpu& gpu = *launch->gpu;
  void* stream = launch->lane->stream;
  uint64_t free_scratch = rounded(launch->control_nbytes()), free = free_scratch + rounded(scratch);
  for (size_t i = 0; i < n; i++) {
    const DeviceOp& op = group[i]->op;
    const Header& h = op.frame->header;
    const uint32_t ndim = h.ndim ? h.ndim : 1;
    Job& job = launch->jobs()[i];
    if (is_in_place(*op.frame)) {
      job.src = reinterpret_cast<Address>(op.frame->memory) + HEADER_NBYTES;
    } else {
      job.src = launch->at(free);
      free += rounded(h.payload_nbytes);
    }
    job.dst = address_of(op.block);
    job.n = units(own.codec, h.size() * (is_complex(h.dtype) ? 2 : 1), h.nbytes());
    job.nbytes = h.payload_nbytes;
    job_params(own.codec, h.dtype, ndim, h.shape, h.params, job.params);
    launch->results()[i].wanted = h.has_checksum;
    if (const uint64_t nbytes = scratch_nbytes(own.codec, job.n)) {
      job.scratch = launch->at(free_scratch);
      free_scratch += nbytes;
    }
    if (finds) launch->jobs()[n + i].src = job.dst, launch->jobs()[n + i].n = reals(op.block);
    group[i]->state = State::VALUES;
  }
  upload(launch, scratch);
  for (size_t i = 0; i < n; i++) {
    const DeviceOp& op = group[i]->op;
    if (!is_in_place(*op.frame)) send_payload(launch, *op.frame, launch->jobs()[i].src);
    if (group[i]->clears && !gpu.failed())
      gpu.check(driver()->set_bytes(address_of(op.block), 0, op.block.nbytes(), stream), "cuMemsetD8Async");
  }
  launch_kernels(launch, own, 0, n, sums_up);
  if (finds) launch_kernels(launch, *plan(first_op.gpu, Verb::FIND_LARGEST, 0, dtype), n, n);
  fetch_results(launch);
  await(launch->lane, nullptr, launch, true);
}

void DeviceWork::look_at_values(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Launch& launch = *machine->launch;
  const size_t n = launch.machines.size();
  if (op.kind == COPY) {
    if (op.into.nbytes() < op.block.nbytes())
      machine->bound =
          of_result(op.into.dtype,
                    magnitude(op.into.dtype, launch.results()[n + machine->job].extent[0], coder_.level()));
    return end(machine);
  }
  machine->bound = op.frame->bound();
  if (op.kind == DECODE_ADD && op.block.dtype >= FLOAT16)
    machine->bound +=
        of_addition(op.block.dtype,
                    magnitude(op.block.dtype, launch.results()[n + machine->job].extent[0], coder_.level()));
  end(machine, damage(op.frame->header, launch.results()[machine->job]));
}

// -- around them

void DeviceWork::copy(Machine* machine) {
  const DeviceOp& op = machine->op;
  if (!op.gpu || !op.into_gpu) return bring_down(machine);
  if (op.block.dtype == op.into.dtype) {
    Lane* in = lane(op.into_gpu, false);
    machine->state = State::UP;
    if (op.block.n && !op.into_gpu->failed())
      op.into_gpu->check(
          driver()->on_device(address_of(op.into), address_of(op.block), op.block.nbytes(), in->stream),
          "cuMemcpyDtoDAsync");
    return await(in, machine, nullptr, true);
  }
  machine->plan = plan(op.gpu, Verb::CONVERT, op.block.dtype, op.into.dtype);
  const bool narrows = op.into.nbytes() < op.block.nbytes();
  if (op.gpu != op.into_gpu || !op.block.n || !is_aligned(op.block) || !is_aligned(op.into) ||
      !machine->plan->complete || (narrows && !plan(op.gpu, Verb::FIND_LARGEST, 0, op.into.dtype)->complete))
    return bring_down(machine);
  machine->state = State::PENDING;
  pending_.push_back(machine);
}

void DeviceWork::convert_group(const std::vector<Machine*>& group) {
  const Plan& own = *group[0]->plan;
  const DeviceOp& op = group[0]->op;
  const size_t n = group.size();
  const bool narrows = itemsize(op.into.dtype) < itemsize(op.block.dtype);
  Launch* launch = new_launch(group, false, narrows ? 2 * n : n, 0);
  for (size_t i = 0; i < n; i++) {
    const DeviceOp& one = group[i]->op;
    Job& job = launch->jobs()[i];
    job.src = address_of(one.block), job.dst = address_of(one.into), job.n = one.block.n;
    if (narrows) launch->jobs()[n + i].src = job.dst, launch->jobs()[n + i].n = job.n;
    group[i]->state = State::VALUES;
  }
  upload(launch, 0);
  launch_kernels(launch, own, 0, n);
  if (narrows) launch_kernels(launch, *plan(op.gpu, Verb::FIND_LARGEST, 0, op.into.dtype), n, n);
  fetch_results(launch);
  await(launch->lane, nullptr, launch, true);
}

// Two frames are added where they are; on the host where the codec has no kernels for that.
void DeviceWork::sum(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Header &a = op.frame->header, &b = op.other->header;
  const bool alike = a.codec == b.codec && a.dtype == b.dtype && !memcmp(a.shape, b.shape, sizeof a.shape) &&
                     !memcmp(a.params, b.params, sizeof a.params);
  if (!alike || !op.gpu || !op.block.n || !is_size_sound(a) || !is_size_sound(b)) return bring_down(machine);
  machine->plan = plan(op.gpu, Verb::SUM, a.codec, a.dtype);
  if (!machine->plan->complete) return bring_down(machine);
  machine->state = State::PENDING;
  pending_.push_back(machine);
}

// Jobs for the first terms, the second ones, and the sums.
void DeviceWork::sum_group(const std::vector<Machine*>& group) {
  const Plan& own = *group[0]->plan;
  const size_t n = group.size();
  uint64_t scratch = 0, room = 0, payloads = 0;
  for (const Machine* machine : group) {
    const DeviceOp& op = machine->op;
    room = std::max(room, rounded(HEADER_NBYTES + op.block.nbytes() + SLACK));
    scratch += scratch_nbytes(own.codec, op.block.n, 2);
    for (const Frame* frame : {op.frame, op.other})
      if (!is_in_place(*frame)) payloads += rounded(frame->header.payload_nbytes);
  }
  Launch* launch = new_launch(group, true, 3 * n, rounded(scratch) + payloads + (direct_ ? 0 : n * room));
  uint64_t free_scratch = rounded(launch->control_nbytes()), free = free_scratch + rounded(scratch);
  std::vector<std::pair<const Frame*, Address>> copies;
  for (size_t i = 0; i < n; i++) {
    Machine& m = *group[i];
    Frame& made = *m.op.made;
    const Frame* terms[] = {m.op.frame, m.op.other};
    for (size_t k = 0; k < 2; k++) {
      const Header& h = terms[k]->header;
      Job& job = launch->jobs()[k * n + i];
      job.src = reinterpret_cast<Address>(terms[k]->memory) + HEADER_NBYTES;
      if (!is_in_place(*terms[k])) {
        job.src = launch->at(free);
        free += rounded(h.payload_nbytes);
        copies.emplace_back(terms[k], job.src);
      }
      job.n = h.size(), job.nbytes = h.payload_nbytes;
      job.params[0] = h.params[0], job.params[1] = h.params[1];
      launch->results()[k * n + i].wanted = h.has_checksum;
    }
    const Header &a = terms[0]->header, &b = terms[1]->header;
    Job& job = launch->jobs()[2 * n + i];
    if (direct_) {
      made.memory = m.op.gpu->memory().get(room);
      made.room = room, made.allocator = &m.op.gpu->memory(), made.on_device = true;
    }
    job.dst = HEADER_NBYTES + (direct_ ? reinterpret_cast<Address>(made.memory) : launch->at(free));
    if (!direct_) free += room;
    const uint64_t jobs = launch->at(3 * n * sizeof(Result));
    job.src = jobs + i * sizeof(Job);
    job.n = a.size(), job.nbytes = a.nbytes();
    job.params[0] = a.params[0], job.params[1] = jobs + (n + i) * sizeof(Job);
    job.scratch = launch->at(free_scratch);
    free_scratch += scratch_nbytes(own.codec, a.size(), 2);
    Result& result = launch->results()[2 * n + i];
    result.wanted = a.has_checksum;
    Header header = a;
    header.bound = a.bound + b.bound, header.payload_nbytes = 0, header.checksum = 0, header.fallback = false;
    outline(header, result.header);
    m.job = 2 * n + i;
    m.nbytes = 0;
    m.state = State::SIZE;
  }
  upload(launch, scratch);
  for (const auto& [frame, address] : copies) send_payload(launch, *frame, address);
  launch_kernels(launch, *plan(launch->gpu, Verb::DECODE, own.packed, own.dtype), 0, 2 * n, true, true);
  launch_kernels(launch, own, 2 * n, n);
  fetch_results(launch);
  await(launch->lane, nullptr, launch);
}

// The results of a sum: where its terms are sound and the codec can represent it, there is a frame.
void DeviceWork::look_at_terms(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Launch& launch = *machine->launch;
  const size_t n = launch.n_jobs / 3;
  const Frame* terms[] = {op.frame, op.other};
  for (size_t k = 0; k < 2; k++) {
    const Result& result = launch.results()[machine->job - (2 - k) * n];
    if (const Error error = damage(terms[k]->header, result)) {
      drop_frame(machine);
      return end(machine, error);
    }
  }
  fetch_frame(machine, launch.results()[machine->job].nbytes);
}

// Copies what the host needs of an operation that it carries out.
void DeviceWork::bring_down(Machine* machine) {
  const DeviceOp& op = machine->op;
  const bool reads = op.kind == ENCODE || op.kind == DECODE_ADD || op.kind == COPY;
  const bool block_here = op.gpu && op.kind != ADD;
  uint64_t nbytes = block_here ? rounded(op.block.nbytes()) : 0;
  if (op.into_gpu) nbytes += rounded(op.into.nbytes());
  const uint64_t frames = nbytes;
  for (const Frame* frame : {op.frame, op.other})
    if (frame && frame != op.made && frame->on_device) nbytes += rounded(frame->nbytes);
  if (nbytes) machine->staged = pinned().get(nbytes);
  machine->state = State::DOWN;
  Gpu* gpu = op.gpu ? op.gpu : op.into_gpu;
  Lane* down = nullptr;
  auto fetch = [&](uint8_t* to, const uint8_t* from, uint64_t n) {
    if (!n) return;
    if (!down) down = lane(gpu, true);
    if (!gpu->failed())
      gpu->check(driver()->to_host(to, reinterpret_cast<Address>(from), n, down->stream),
                 "cuMemcpyDtoHAsync");
  };
  if (block_here && reads) fetch(machine->staged, op.block.data, op.block.nbytes());
  uint64_t at = frames;
  for (const Frame* frame : {op.frame, op.other}) {
    if (!frame || frame == op.made || !frame->on_device) continue;
    fetch(machine->staged + at, frame->memory, frame->nbytes);
    at += rounded(frame->nbytes);
  }
  if (down) await(down, machine, nullptr);
  else on_host(machine);
}

void DeviceWork::on_host(Machine* machine) {
  const DeviceOp& op = machine->op;
  Error error;
  Gpu* up = nullptr;
  Span target = op.block;
  uint8_t* from = machine->staged;
  switch (op.kind) {
    case ENCODE: error = encode_on_host(machine); break;
    case ADD: {
      Frame terms[] = {*op.frame, *op.other};
      uint8_t* at = machine->staged;
      for (Frame& frame : terms) {
        if (!frame.on_device) continue;
        frame.memory = at;
        at += rounded(frame.nbytes);
      }
      error = machine->coder->add(terms[0], terms[1], {nullptr, op.block.n, op.block.dtype}, op.made);
      break;
    }
    case COPY:
      error = copy_on_host(machine);
      up = op.into_gpu, target = op.into;
      if (op.gpu) from += rounded(op.block.nbytes());
      break;
    default: error = decode_on_host(machine); up = op.gpu;
  }
  if (error || !up || !target.n) return end(machine, error);
  Lane* in = lane(up, false);
  if (!up->failed())
    up->check(driver()->to_device(address_of(target), from, target.nbytes(), in->stream),
              "cuMemcpyHtoDAsync");
  machine->state = State::UP;
  await(in, machine, nullptr, true);
}

Error DeviceWork::encode_on_host(Machine* machine) {
  const DeviceOp& op = machine->op;
  Span block = op.block;
  block.data = machine->staged;
  Frame& frame = *op.made;
  frame.allocator = &pool_;
  // Where the owner takes the values, they are decoded on the device later.
  const Error error =
      machine->coder->encode(block, op.carried, op.taken ? block : Span{nullptr, 0, 0}, &frame, op.base);
  frame.settled = false;
  return error;
}

Error DeviceWork::decode_on_host(Machine* machine) {
  const DeviceOp& op = machine->op;
  const bool adds = op.kind == DECODE_ADD;
  Frame frame = *op.frame;
  if (frame.on_device) frame.memory = machine->staged + (op.gpu ? rounded(op.block.nbytes()) : 0);
  Span block = op.block;
  if (op.gpu) block.data = machine->staged;
  const Dense dense(pool_, block, adds);
  const Error error = adds ? coder_.decode_add(frame, dense.span(), &machine->bound)
                           : coder_.decode(frame, dense.span(), op.base);
  if (!adds) machine->bound = frame.bound();
  if (!error) dense.store();
  return error;
}

Error DeviceWork::copy_on_host(Machine* machine) {
  const DeviceOp& op = machine->op;
  Span block = op.block, into = op.into;
  if (op.gpu) block.data = machine->staged;
  if (op.into_gpu) into.data = machine->staged + (op.gpu ? rounded(block.nbytes()) : 0);
  const Dense from(pool_, block, true), to(pool_, into, false);
  machine->bound = coder_.copy(from.span(), to.span());
  to.store();
  return {};
}

}  // namespace engine
}  // namespace compcoll
