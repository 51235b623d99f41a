// Part of device.h: encoding.
#include <algorithm>
#include <cstring>

#include "device_blocks.h"

namespace compcoll {
namespace engine {
namespace {

// A frame of unknown size is first copied up to this multiple of the size predicted from the call's last
// frame.
constexpr double more_than_last = 1.05;
// Offset in a header of the payload's size, or of a status if there is no frame (csrc/cuda).
constexpr uint64_t size_at = 56;

}  // namespace

// Starts the next codec to try; on the host if it has no kernels.
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
  if (coding.plain && !direct_ && op.block.n && !op.base && one.codec == machine->coder->index_of(raw_name()))
    return copy_down(machine);
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

DeviceWork::Launch* DeviceWork::describe_encodes(const std::vector<Machine*>& group) {
  const Plan& plan = *group[0]->plan;
  auto scratch_of = [&](const Span& block) {
    return scratch_nbytes(plan.codec, units(plan.codec, reals(block), block.nbytes()));
  };
  uint64_t scratch = 0;
  for (const Machine* machine : group) scratch += scratch_of(machine->op.block);
  Launch* launch = new_launch(group, group.size(), scratch);
  scratch = launch->scratch;
  for (size_t i = 0; i < group.size(); i++) {
    Machine& m = *group[i];
    const Span& block = m.op.block;
    const uint64_t room = rounded(HEADER_NBYTES + block.nbytes() + SLACK);
    Job& job = launch->jobs()[i];
    job.src = address_of(block);
    job.dst = HEADER_NBYTES + allocate_frame(&m, room);
    job.nbytes = block.nbytes();
    job.n = units(plan.codec, reals(block), block.nbytes());
    if (const uint64_t nbytes = scratch_of(block)) {
      job.scratch = scratch;
      scratch += nbytes;
    }
    describe_header(m, &job, &launch->results()[i]);
    const uint64_t* params = m.at->params[block.ndim() - 1];
    const int64_t known = block.ndim() > 1 ? -1 : payload_nbytes(plan.codec, block.dtype, block.n, params);
    m.nbytes = known >= 0 && uint64_t(known) <= block.nbytes() ? HEADER_NBYTES + uint64_t(known) : 0;
    m.bound = 0;
    m.fetched = m.maps ? room : direct_ ? HEADER_NBYTES : m.nbytes ? m.nbytes : guess(m);
    if (m.fetched && !m.maps) hold_frame(&m);
  }
  return launch;
}

// A codec's parameters, and the header fields known so far.
void DeviceWork::describe_header(const Machine& m, Job* job, Result* result) {
  const Span& block = m.op.block;
  const uint32_t ndim = block.ndim();
  const uint64_t* params = m.at->params[ndim - 1];
  const uint64_t shape[] = {block.dim(0), block.dim(1), block.dim(2)};
  job_params(m.plan->codec, block.dtype, ndim, shape, params, job->params);
  const Header header = {m.plan->packed,         block.dtype, ndim,         {shape[0], shape[1], shape[2]},
                         {params[0], params[1]}, 0,           m.op.carried, 0,
                         m.op.made->checked,     m.refused};
  outline(header, result->header);
  result->wanted = m.op.made->checked, result->parts = m.coder->coding().parts;
  if (m.plan->packed == raw_name()) result->nbytes = int64_t(block.nbytes());  // its kernel reports no size
}

void DeviceWork::issue_encodes(Launch* launch) {
  launch_kernels(launch, *launch->plan, 0, launch->machines.size());
  const std::vector<Machine*> group = launch->machines;
  if (std::any_of(group.begin(), group.end(),
                  [](const Machine* m) { return !m->fetched || (m->coder->sums() && !m->op.taken); }))
    fetch_results(launch);
  launch->machines.clear();
  for (Machine* machine : group) {
    if (machine->maps) {
      machine->state = State::FRAME;
      await(launch->lane, machine, nullptr);
    } else if (machine->fetched) {
      const uint64_t end = machine->fetched;
      machine->fetched = 0;
      fetch_frame(machine, end);
    } else {
      machine->state = State::SIZE;
      launch->machines.push_back(machine);
    }
  }
  if (!launch->machines.empty()) await(launch->lane, nullptr, launch);
}

// Allocates a frame: in device memory that it keeps, in host memory that kernels write to, or in the
// operation's device memory.
Address DeviceWork::allocate_frame(Machine* machine, uint64_t room) {
  Frame& frame = *machine->op.made;
  Gpu* gpu = machine->op.gpu;
  machine->maps = !direct_ && machine->op.block.nbytes() <= most_mapped && machine->plan->in_one_go();
  if (!direct_ && !machine->maps) return allocate(machine, room);
  if (direct_) {
    frame.allocator = &gpu->memory();
    frame.memory = frame.allocator->get(room);
    frame.room = room, frame.gpu = gpu;
  } else {
    hold(&frame, room);
  }
  if (!machine->maps || pinned().is_mapped(frame.memory)) return reinterpret_cast<Address>(frame.memory);
  drop_frame(machine);
  machine->maps = false;
  return allocate(machine, room);
}

// Bytes of a frame of unknown size to copy together with its header; 0 for the first frame of a call.
uint64_t DeviceWork::guess(const Machine& machine) const {
  const uint64_t nbytes = machine.op.block.nbytes();
  for (const auto& [plan, ratio] : ratios_)
    if (plan == machine.plan)
      return HEADER_NBYTES + std::min(nbytes, uint64_t(more_than_last * ratio * double(nbytes)));
  return 0;
}

// Allocates pinned memory for a frame, shared with its readers if they are on this node.
void DeviceWork::hold(Frame* frame, uint64_t room) {
  frame->room = room;
  frame->memory = frame->allocator ? frame->allocator->get_pinned(room) : nullptr;
  if (frame->memory) return;
  frame->allocator = &pinned();
  frame->memory = pinned().get(room);
}

// Allocates host memory for a frame, or for the header of one that stays on the device.
void DeviceWork::hold_frame(Machine* machine) {
  Frame& frame = *machine->op.made;
  if (direct_) {
    machine->header = pinned().get(HEADER_NBYTES);
    return;
  }
  const uint64_t most = HEADER_NBYTES + machine->op.block.nbytes();
  hold(&frame, (machine->nbytes ? machine->nbytes : most) + MORE_NBYTES);
}

// A frame's host copy, as far as it has been fetched.
uint8_t* DeviceWork::header_of(const Machine& machine) const {
  return direct_ ? machine.header : machine.op.made->memory;
}

// Copies the next bytes of a frame to the host, up to `end`.
void DeviceWork::fetch_frame(Machine* machine, uint64_t end) {
  Launch& launch = *machine->launch;
  const uint64_t begin = machine->fetched;
  const Address frame = launch.jobs()[machine->job].dst - HEADER_NBYTES;
  uint8_t* to = header_of(*machine);
  within_->enter(launch.gpu());
  launch.gpu().to_host(to + begin, frame + begin, end - begin, launch.lane->stream);
  machine->fetched = end;
  machine->state = State::FRAME;
  await(launch.lane, machine, nullptr);
}

// Continues with a frame once its size or a status is known, from its header or from the result.
void DeviceWork::look_at_size(Machine* machine) {
  int64_t nbytes = machine->launch->results()[machine->job].nbytes;
  if (machine->fetched) memcpy(&nbytes, header_of(*machine) + size_at, sizeof nbytes);
  const uint64_t most = machine->op.block.nbytes();
  if (nbytes < 0 || uint64_t(nbytes) > most) return refuse(machine, nbytes < 0 ? nbytes : int64_t(TOO_LARGE));
  machine->nbytes = HEADER_NBYTES + uint64_t(nbytes);
  const double ratio = double(nbytes) / double(most);
  auto known = std::find_if(ratios_.begin(), ratios_.end(),
                            [&](const auto& one) { return one.first == machine->plan; });
  if (known != ratios_.end()) known->second = ratio;
  else ratios_.emplace_back(machine->plan, ratio);
  const uint64_t end = direct_ ? HEADER_NBYTES : machine->nbytes;
  if (machine->fetched >= end) return look_at_frame(machine);
  if (!machine->fetched) hold_frame(machine);
  fetch_frame(machine, end);
}

void DeviceWork::look_at_frame(Machine* machine) {
  if (!machine->nbytes) return look_at_size(machine);
  const DeviceOp& op = machine->op;
  Frame& frame = *op.made;
  const uint8_t* header = header_of(*machine);
  uint32_t magic;
  memcpy(&magic, header, sizeof magic);
  if (!magic) {
    int64_t status;
    memcpy(&status, header + size_at, sizeof status);
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
  machine->plan = finds;
  pending_.push_back(machine);
}

DeviceWork::Launch* DeviceWork::describe_largest(const std::vector<Machine*>& group) {
  Launch* launch = new_launch(group, group.size());
  for (size_t i = 0; i < group.size(); i++) {
    launch->jobs()[i].src = address_of(group[i]->op.block), launch->jobs()[i].n = reals(group[i]->op.block);
    group[i]->state = State::MAGNITUDE;
  }
  return launch;
}

void DeviceWork::look_at_magnitude(Machine* machine) {
  const uint64_t bits = machine->launch->results()[machine->job].extent[0];
  const double most = magnitude(machine->op.block.dtype, bits, coder_.level());
  const double bound = machine->bound;
  machine->bound = 0;
  if (!machine->coder->overflows(bound, most)) return end(machine);
  refuse(machine, UNREPRESENTABLE);
}

// This codec has not made a frame: tries the next one.
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

DeviceWork::Launch* DeviceWork::describe_samples(const std::vector<Machine*>& group) {
  Launch* launch = new_launch(group, group.size());
  uint64_t nbytes = 0;
  for (Machine* machine : group) {
    machine->sample = nbytes;
    nbytes += sample_of(machine->op.block).nbytes();
  }
  allocate(launch, nbytes);
  launch->staged.push_back(pinned().get(nbytes));
  for (size_t i = 0; i < group.size(); i++) {
    const LosslessSample sample = sample_of(group[i]->op.block);
    Job& job = launch->jobs()[i];
    job.src = address_of(group[i]->op.block);
    job.dst = reinterpret_cast<Address>(launch->memory) + group[i]->sample;
    job.n = sample.nbytes();
    job.params[0] = sample.piece, job.params[1] = sample.step;
    group[i]->state = State::SAMPLE;
  }
  return launch;
}

void DeviceWork::issue_samples(Launch* launch) {
  launch_kernels(launch, *launch->plan, 0, launch->machines.size());
  launch->gpu().to_host(launch->staged[0], reinterpret_cast<Address>(launch->memory), launch->nbytes,
                        launch->lane->stream);
  await(launch->lane, nullptr, launch);
}

// Chooses lossless codecs from the sample.
void DeviceWork::choose(Machine* machine) {
  static const uint64_t lossless = packed_name("lossless");
  const Span& block = machine->op.block;
  const Coder& coder = *machine->coder;
  const LosslessSample sample = sample_of(block);
  const uint64_t n = sample.nbytes() / itemsize(block.dtype);
  const uint64_t row = block.ndim() > 1 ? block.dim(block.ndim() - 1) : 0;
  Args args = {block.dtype, 1, {n, 1, 1}, {1, row}, 0, 0, 0, nullptr, false};
  uint8_t nothing;
  coder.level().codecs[coder.index_of(lossless)]->encode(&args, machine->launch->staged[0] + machine->sample,
                                                         &nothing);
  const uint64_t raw[] = {CHOSE_RAW, 0};
  machine->own[0] = coder.chosen(args.params), machine->own[1] = coder.chosen(raw);
  const size_t n_own = args.params[0] == CHOSE_RAW ? 1 : 2;
  release(machine);
  machine->at = machine->own, machine->end = machine->own + n_own;
  encode_next(machine);
}

}  // namespace engine
}  // namespace compcoll
