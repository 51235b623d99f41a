// The part of device.h that encodes.
#include <algorithm>
#include <cstring>

#include "../lossless.h"
#include "device_blocks.h"

namespace compcoll {
namespace engine {
namespace {

LosslessSample sample_of(const Span& block) {
  return {block.nbytes(), real_nbytes(block.dtype) == 8 ? 8u : 4u};
}

}  // namespace

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
  enqueue(machine);
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
    job.src = address_of(block);
    job.dst = HEADER_NBYTES +
              (direct_ ? allocate_frame(&m, room) : launch->at(first + rounded(scratch) + i * room));
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
    result.wanted = frame.checked, result.parts = m.coder->coding().parts;
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

// Has a frame that stays there in a GPU's memory.
Address DeviceWork::allocate_frame(Machine* machine, uint64_t room) {
  Frame& frame = *machine->op.made;
  Gpu* gpu = machine->op.gpu;
  frame.memory = gpu->memory().get(room);
  frame.room = room, frame.allocator = &gpu->memory(), frame.gpu = gpu;
  return reinterpret_cast<Address>(frame.memory);
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
    frame.room = n + MORE_NBYTES;
    frame.memory = to = pinned().get(frame.room);
    frame.allocator = &pinned();
  }
  within_->enter(gpu);
  gpu.to_host(to, from, n, launch.lane->stream);
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
  const double bound = machine->coder->modulus(machine->launch->results()[machine->job].bound);
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
  Launch* launch = new_launch(group, true, n, n * sample_nbytes);
  const uint64_t first = rounded(launch->control_nbytes());
  for (size_t i = 0; i < n; i++) {
    const LosslessSample sample = sample_of(group[i]->op.block);
    Job& job = launch->jobs()[i];
    job.src = address_of(group[i]->op.block), job.dst = launch->at(first + i * sample_nbytes);
    job.n = sample.nbytes();
    job.params[0] = sample.piece, job.params[1] = sample.step;
    group[i]->state = State::SAMPLE;
  }
  launch->staged.push_back(pinned().get(n * sample_nbytes));
  upload(launch, 0);
  launch_kernels(launch, *group[0]->plan, 0, n);
  Gpu& gpu = *launch->gpu;
  gpu.to_host(launch->staged[0], launch->at(first), n * sample_nbytes, launch->lane->stream);
  await(launch->lane, nullptr, launch);
}

// Chooses lossless codecs by the sample.
void DeviceWork::choose(Machine* machine) {
  static const uint64_t lossless = packed_name("lossless");
  const Span& block = machine->op.block;
  const Coder& coder = *machine->coder;
  const LosslessSample sample = sample_of(block);
  const uint64_t n = sample.nbytes() / itemsize(block.dtype);
  const uint64_t row = block.ndim() > 1 ? block.dim(block.ndim() - 1) : 0;
  Args args = {block.dtype, 1, {n, 1, 1}, {1, row}, 0, 0, 0, nullptr, false};
  uint8_t nothing;
  coder.level().codecs[coder.index_of(lossless)]->encode(
      &args, machine->launch->staged[0] + machine->job * sample_nbytes, &nothing);
  const uint64_t raw[] = {CHOSE_RAW, 0};
  machine->own[0] = coder.chosen(args.params), machine->own[1] = coder.chosen(raw);
  const size_t n_own = args.params[0] == CHOSE_RAW ? 1 : 2;
  release(machine);
  machine->at = machine->own, machine->end = machine->own + n_own;
  encode_next(machine);
}

}  // namespace engine
}  // namespace compcoll
