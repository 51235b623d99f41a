// Part of device.h: grouping operations into launches, and copying their jobs to a device.
#include <algorithm>
#include <cstring>

#include "device_blocks.h"

namespace compcoll {
namespace engine {
namespace {

// Largest total size of the blocks in one launch, and of the device memory of a run's operations.
constexpr uint64_t most_launched = 8 << 20, most_in_flight = 128 << 20;
constexpr size_t most_jobs = 65535;  // in a grid
// While frames are being decoded, other decodes wait until they have this many bytes together: on a GPU that
// ranks share, each launch costs a turn, however small.
constexpr uint64_t least_decoded = 4 << 20;
// Minimum size of an upload, so that all calls reuse the same sizes; and the largest scratch memory in one.
// Larger scratch memory is zeroed by the device.
constexpr uint64_t least_upload = 64 << 10, most_scratch = 64 << 10;

}  // namespace

const DeviceWork::Plan* DeviceWork::plan(Gpu* gpu, Verb verb, uint64_t codec, uint32_t dtype, uint32_t ndim,
                                         const uint64_t* params) {
  static const uint64_t zfp = packed_name("zfp"), bfp = packed_name("bfp"), szp = packed_name("szp");
  static std::mutex mutex;
  static auto& plans = *new std::deque<Plan>;  // other threads may use them during process exit
  // Parameters that kernel names depend on.
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

bool DeviceWork::Plan::in_one_go() const {
  return std::none_of(kernels.begin(), kernels.end(), [](const Kernel& one) { return one.by_nbytes; });
}

// Queues an operation for a launch with others of its plan. The host runs it if kernels are missing,
// including those that find the largest magnitude of type `found`.
void DeviceWork::enqueue(Machine* machine, uint32_t found) {
  Gpu* gpu = machine->op.gpu;
  if (!machine->plan->complete || (found && !plan(gpu, Verb::FIND_LARGEST, 0, found)->complete))
    return bring_down(machine);
  pending_.push_back(machine);
}

// Device memory that an operation needs.
uint64_t DeviceWork::needs(const Machine& machine) const {
  const DeviceOp& op = machine.op;
  switch (machine.plan->verb) {
    case Verb::ENCODE: return rounded(HEADER_NBYTES + op.block.nbytes() + SLACK);
    case Verb::DECODE:
    case Verb::DECODE_ADD: return std::max(op.frame->nbytes, op.block.nbytes());
    case Verb::SUM: return 3 * rounded(HEADER_NBYTES + op.block.nbytes() + SLACK);
    case Verb::GATHER: return sample_of(op.block).nbytes();
    default: return op.block.nbytes();
  }
}

// Starts the pending operations: one launch for each plan, and one copy for the jobs of all launches.
bool DeviceWork::launch_pending() {
  std::vector<Machine*> waiting;
  while (!pending_.empty()) {
    uint64_t nbytes = 0;
    const std::vector<Machine*> group = take_group(&nbytes);
    if (waits(*group[0]->plan, nbytes)) {
      waiting.insert(waiting.end(), group.begin(), group.end());
      continue;
    }
    within_->enter(*group[0]->plan->gpu);
    try {
      described_.push_back(describe(group));
    } catch (const std::bad_alloc&) { fall_back(group); }
  }
  pending_.swap(waiting);
  const bool moved = !described_.empty();
  for (Launch* launch : described_) issue(launch);
  described_.clear();
  open_ = nullptr;
  return moved;
}

// The first pending operation and those that can share its launch.
std::vector<DeviceWork::Machine*> DeviceWork::take_group(uint64_t* nbytes) {
  const Plan* plan = pending_[0]->plan;
  size_t n = 0;
  const auto end = std::stable_partition(pending_.begin(), pending_.end(), [&](const Machine* machine) {
    const bool fits = machine->plan == plan && *nbytes < most_launched && n < most_jobs / 3;
    if (fits) n++, *nbytes += needs(*machine);
    return fits;
  });
  const std::vector<Machine*> group(pending_.begin(), end);
  pending_.erase(pending_.begin(), end);
  return group;
}

// True if operations have to wait for memory, or small decodes for more frames.
bool DeviceWork::waits(const Plan& plan, uint64_t nbytes) const {
  if (in_flight_ && in_flight_ + nbytes > most_in_flight) return true;
  const auto decodes = [](Verb verb) { return verb == Verb::DECODE || verb == Verb::DECODE_ADD; };
  if (!decodes(plan.verb) || nbytes >= least_decoded) return false;
  return std::any_of(launches_.begin(), launches_.end(), [&](const auto& other) {
    return other->users && other->plan->gpu == plan.gpu && decodes(other->plan->verb);
  });
}

DeviceWork::Launch* DeviceWork::describe(const std::vector<Machine*>& group) {
  switch (group[0]->plan->verb) {
    case Verb::ENCODE: return describe_encodes(group);
    case Verb::DECODE:
    case Verb::DECODE_ADD: return describe_decodes(group);
    case Verb::SUM: return describe_sums(group);
    case Verb::CONVERT: return describe_conversions(group);
    case Verb::FIND_LARGEST: return describe_largest(group);
    case Verb::GATHER: break;
  }
  return describe_samples(group);
}

// Runs operations on the host because the device has no memory for them.
void DeviceWork::fall_back(const std::vector<Machine*>& group) {
  for (Machine* machine : group) {
    release(machine);
    if (machine->op.made) drop_frame(machine);
    bring_down(machine);
  }
}

// -- memory

// The upload that launches share until it is sent, or a new one if it is full.
DeviceWork::Upload* DeviceWork::upload_for(Gpu* gpu, uint64_t nbytes) {
  if (open_ && open_->gpu == gpu && open_->used + nbytes <= open_->nbytes) return open_;
  if (idle_uploads_.empty()) {
    uploads_.push_back(std::make_unique<Upload>());
    idle_uploads_.push_back(uploads_.back().get());
  }
  Upload* made = idle_uploads_.back();
  *made = {};
  made->gpu = gpu;
  made->nbytes = std::max(nbytes, least_upload);
  made->host = pinned().get(made->nbytes);
  try {
    made->device = gpu->memory().get(made->nbytes);
  } catch (const std::bad_alloc&) {
    pinned().put(made->host, 0);
    throw;
  }
  idle_uploads_.pop_back();
  return open_ = made;
}

DeviceWork::Launch* DeviceWork::new_launch(const std::vector<Machine*>& group, size_t n_jobs,
                                           uint64_t scratch_nbytes) {
  const Plan* plan = group[0]->plan;
  const uint64_t jobs_nbytes = rounded(n_jobs * (sizeof(Result) + sizeof(Job)));
  const bool clears = scratch_nbytes > most_scratch;
  const uint64_t nbytes = jobs_nbytes + (clears ? 0 : rounded(scratch_nbytes));
  if (idle_launches_.empty()) {
    launches_.push_back(std::make_unique<Launch>());
    idle_launches_.push_back(launches_.back().get());
  }
  Launch* made = idle_launches_.back();
  Upload* upload = upload_for(plan->gpu, nbytes);
  *made = {plan, group, upload, upload->used, n_jobs, group.size(), nullptr, nullptr, 0, 0, clears, {}};
  made->scratch = made->results_at() + jobs_nbytes;
  idle_launches_.pop_back();
  upload->users++;
  upload->used += nbytes;
  memset(made->results(), 0, nbytes);
  for (size_t i = 0; i < n_jobs; i++) made->jobs()[i].result = made->results_at() + i * sizeof(Result);
  for (size_t i = 0; i < group.size(); i++) group[i]->launch = made, group[i]->job = i;
  if (clears) {
    allocate(made, scratch_nbytes);
    made->scratch = reinterpret_cast<Address>(made->memory);
  }
  return made;
}

// Allocates device memory for a launch.
void DeviceWork::allocate(Launch* launch, uint64_t nbytes) {
  launch->memory = launch->gpu().memory().get(nbytes);
  launch->nbytes = nbytes;
  in_flight_ += nbytes;
}

// Allocates device memory for an operation, until its release.
Address DeviceWork::allocate(Machine* machine, uint64_t nbytes) {
  machine->memory = machine->op.gpu->memory().get(nbytes);
  machine->memory_nbytes = nbytes;
  in_flight_ += nbytes;
  return reinterpret_cast<Address>(machine->memory);
}

// Releases an operation's memory, and the launch's after its last operation.
void DeviceWork::release(Machine* machine) {
  if (machine->memory) machine->op.gpu->memory().put(machine->memory, machine->memory_nbytes);
  in_flight_ -= machine->memory_nbytes;
  machine->memory = nullptr, machine->memory_nbytes = 0;
  Launch* launch = machine->launch;
  machine->launch = nullptr;
  if (!launch || --launch->users) return;
  for (uint8_t* memory : launch->staged) pinned().put(memory, 0);
  if (launch->memory) launch->gpu().memory().put(launch->memory, launch->nbytes);
  in_flight_ -= launch->nbytes;
  idle_launches_.push_back(launch);
  release(launch->upload);
}

void DeviceWork::release(Upload* upload) {
  if (--upload->users) return;
  if (upload == open_) open_ = nullptr;
  pinned().put(upload->host, 0);
  upload->gpu->memory().put(upload->device, upload->nbytes);
  if (upload->event) upload->gpu->put_event(upload->event);
  idle_uploads_.push_back(upload);
}

// -- streams

void DeviceWork::issue(Launch* launch) {
  send_jobs(launch);
  switch (launch->plan->verb) {
    case Verb::ENCODE: return issue_encodes(launch);
    case Verb::DECODE:
    case Verb::DECODE_ADD: return issue_decodes(launch);
    case Verb::SUM: return issue_sums(launch);
    case Verb::GATHER: return issue_samples(launch);
    case Verb::CONVERT:
    case Verb::FIND_LARGEST: break;
  }
  launch_kernels(launch, *launch->plan, 0, launch->machines.size());
  find_largest(launch);
  fetch_results(launch);
  await(launch->lane, nullptr, launch);
}

// Chooses a launch's stream, and makes it wait for the copy of its jobs, which the first launch starts.
void DeviceWork::send_jobs(Launch* launch) {
  Upload& upload = *launch->upload;
  Gpu& gpu = *upload.gpu;
  const Verb verb = launch->plan->verb;
  launch->lane = lane(&gpu, verb == Verb::ENCODE || verb == Verb::SUM || verb == Verb::GATHER);
  void* stream = launch->lane->stream;
  if (!upload.lane) {
    upload.lane = launch->lane;
    gpu.to_device(reinterpret_cast<Address>(upload.device), upload.host, upload.used, stream);
    if (upload.users > 1) gpu.record(upload.event = gpu.take_event(), stream);
  } else if (upload.lane != launch->lane) {
    gpu.wait_for(upload.event, stream);
  }
  if (launch->clears) gpu.clear(launch->scratch, launch->nbytes, stream);
}

void DeviceWork::launch_kernels(Launch* launch, const Plan& plan, size_t first, size_t n, bool sums_up,
                                bool only_sums_up) {
  Gpu& gpu = launch->gpu();
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
    const Address jobs = launch->jobs_at() + first * sizeof(Job);
    gpu.launch(kernel, unsigned(grid), unsigned(n), jobs, launch->lane->stream);
  }
}

// Finds the largest magnitudes of a launch's results, if it has jobs for that after its own.
void DeviceWork::find_largest(Launch* launch) {
  const size_t n = launch->machines.size();
  if (launch->n_jobs <= n) return;
  const DeviceOp& op = launch->machines[0]->op;
  const uint32_t dtype = op.kind == COPY ? op.into.dtype : op.block.dtype;
  launch_kernels(launch, *plan(launch->plan->gpu, Verb::FIND_LARGEST, 0, dtype), n, n);
}

void DeviceWork::fetch_results(Launch* launch) {
  const uint64_t nbytes = launch->n_jobs * sizeof(Result);
  launch->gpu().to_host(launch->results(), launch->results_at(), nbytes, launch->lane->stream);
}

}  // namespace engine
}  // namespace compcoll
