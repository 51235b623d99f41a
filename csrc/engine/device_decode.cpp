// Part of device.h: decoding, adding frames, copying and converting.
#include <algorithm>
#include <cstring>

#include "device_blocks.h"
#include "rounding.h"

namespace compcoll {
namespace engine {
namespace {

// A payload's fault, from the device's result.
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

}  // namespace

// A frame's payload in pinned memory, from where copies are asynchronous; null if it is on a device.
const uint8_t* DeviceWork::payload_of(Launch* launch, const Frame& frame) {
  const uint8_t* payload = frame.memory + HEADER_NBYTES;
  if (frame.gpu) return nullptr;
  if (is_pinned(frame)) return payload;
  const uint64_t nbytes = frame.header.payload_nbytes;
  launch->staged.push_back(pinned().get(nbytes));
  memcpy(launch->staged.back(), payload, nbytes);
  return launch->staged.back();
}

// True if kernels read a payload once, directly from host memory.
bool DeviceWork::is_mapped(const Plan& plan, const Frame& frame) {
  return is_pinned(frame) && plan.in_one_go() && frame.header.nbytes() <= most_mapped &&
         pinned().is_mapped(frame.memory);
}

void DeviceWork::send_payload(const Launch& launch, const Frame& frame, const uint8_t* payload, Address to) {
  const uint64_t nbytes = frame.header.payload_nbytes;
  const Address from = reinterpret_cast<Address>(frame.memory) + HEADER_NBYTES;
  if (payload) launch.gpu().to_device(to, payload, nbytes, launch.lane->stream);
  else launch.gpu().on_device(to, from, nbytes, launch.lane->stream);
}

void DeviceWork::decode(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Frame& frame = *op.frame;
  const Header& h = frame.header;
  const bool adds = op.kind == DECODE_ADD;
  machine->clears = !adds && h.dtype != op.block.dtype;  // 16-bit floats into an accumulator
  if (!op.gpu || op.base || !op.block.n || !is_size_sound(h)) return bring_down(machine);
  if (is_plain(frame) && !adds && !machine->clears) return copy_up(machine);
  if (!is_aligned(op.block)) return bring_down(machine);
  const Verb verb = adds || machine->clears ? Verb::DECODE_ADD : Verb::DECODE;
  machine->plan = plan(op.gpu, verb, h.codec, h.dtype, h.ndim ? h.ndim : 1, h.params);
  enqueue(machine, adds && op.block.dtype >= FLOAT16 ? op.block.dtype : 0);
}

DeviceWork::Launch* DeviceWork::describe_decodes(const std::vector<Machine*>& group) {
  const Plan& own = *group[0]->plan;
  const size_t n = group.size();
  const uint32_t dtype = group[0]->op.block.dtype;
  bool finds = false;
  uint64_t scratch = 0;
  for (const Machine* machine : group) {
    const Header& h = machine->op.frame->header;
    finds = finds || (machine->op.kind == DECODE_ADD && dtype >= FLOAT16);
    scratch += scratch_nbytes(own.codec, units(own.codec, reals(h), h.nbytes()));
  }
  Launch* launch = new_launch(group, finds ? 2 * n : n, scratch);
  scratch = launch->scratch;
  for (size_t i = 0; i < n; i++) {
    const DeviceOp& op = group[i]->op;
    const Header& h = op.frame->header;
    Job& job = launch->jobs()[i];
    if (is_in_place(*op.frame, op.gpu) || is_mapped(own, *op.frame)) {
      job.src = reinterpret_cast<Address>(op.frame->memory) + HEADER_NBYTES;
    } else {
      job.src = allocate(group[i], rounded(h.payload_nbytes));
      group[i]->payloads[0] = payload_of(launch, *op.frame);
    }
    job.dst = address_of(op.block);
    job.n = units(own.codec, reals(h), h.nbytes());
    job.nbytes = h.payload_nbytes;
    job_params(own.codec, h.dtype, h.ndim ? h.ndim : 1, h.shape, h.params, job.params);
    launch->results()[i].wanted = h.has_checksum;
    if (const uint64_t nbytes = scratch_nbytes(own.codec, job.n)) {
      job.scratch = scratch;
      scratch += nbytes;
    }
    if (finds) launch->jobs()[n + i].src = job.dst, launch->jobs()[n + i].n = reals(op.block);
    group[i]->state = State::VALUES;
  }
  return launch;
}

void DeviceWork::issue_decodes(Launch* launch) {
  bool sums_up = false;
  for (const Machine* machine : launch->machines) {
    const DeviceOp& op = machine->op;
    sums_up = sums_up || op.frame->header.has_checksum;
    if (machine->memory)
      send_payload(*launch, *op.frame, machine->payloads[0], launch->jobs()[machine->job].src);
    if (machine->clears) launch->gpu().clear(address_of(op.block), op.block.nbytes(), launch->lane->stream);
  }
  launch_kernels(launch, *launch->plan, 0, launch->machines.size(), sums_up);
  find_largest(launch);
  fetch_results(launch);
  await(launch->lane, nullptr, launch);
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
    machine->bound += coder_.modulus(
        of_addition(op.block.dtype,
                    magnitude(op.block.dtype, launch.results()[n + machine->job].extent[0], coder_.level())));
  end(machine, damage(op.frame->header, launch.results()[machine->job]));
}

// -- copies and sums

void DeviceWork::copy(Machine* machine) {
  const DeviceOp& op = machine->op;
  if (!op.gpu || !op.into_gpu) return bring_down(machine);
  if (op.block.dtype == op.into.dtype) return copies_.push_back(machine);
  machine->plan = plan(op.gpu, Verb::CONVERT, op.block.dtype, op.into.dtype);
  const bool narrows = op.into.nbytes() < op.block.nbytes();
  if (op.gpu != op.into_gpu || !op.block.n || !is_aligned(op.block) || !is_aligned(op.into))
    return bring_down(machine);
  enqueue(machine, narrows ? op.into.dtype : 0);
}

void DeviceWork::copy_on_device(Machine* machine) {
  const DeviceOp& op = machine->op;
  EventStream* in = lane(op.into_gpu, false);
  machine->state = State::UP;
  if (op.block.n)
    op.into_gpu->on_device(address_of(op.into), address_of(op.block), op.block.nbytes(), in->stream);
  await(in, machine, nullptr);
}

DeviceWork::Launch* DeviceWork::describe_conversions(const std::vector<Machine*>& group) {
  const DeviceOp& op = group[0]->op;
  const size_t n = group.size();
  const bool narrows = itemsize(op.into.dtype) < itemsize(op.block.dtype);
  Launch* launch = new_launch(group, narrows ? 2 * n : n);
  for (size_t i = 0; i < n; i++) {
    const DeviceOp& one = group[i]->op;
    Job& job = launch->jobs()[i];
    job.src = address_of(one.block), job.dst = address_of(one.into), job.n = one.block.n;
    if (narrows) launch->jobs()[n + i].src = job.dst, launch->jobs()[n + i].n = job.n;
    group[i]->state = State::VALUES;
  }
  return launch;
}

// Two frames are added where they are, or on the host if the codec has no kernels for that.
void DeviceWork::sum(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Header &a = op.frame->header, &b = op.other->header;
  if (!alike(a, b) || !op.gpu || !op.block.n || !is_size_sound(a) || !is_size_sound(b))
    return bring_down(machine);
  machine->plan = plan(op.gpu, Verb::SUM, a.codec, a.dtype);
  enqueue(machine);
}

// Jobs for the first terms, the second terms, and the sums.
DeviceWork::Launch* DeviceWork::describe_sums(const std::vector<Machine*>& group) {
  const Plan& own = *group[0]->plan;
  const size_t n = group.size();
  uint64_t scratch = 0;
  for (const Machine* machine : group) scratch += scratch_nbytes(own.codec, machine->op.block.n, 2);
  Launch* launch = new_launch(group, 3 * n, scratch);
  scratch = launch->scratch;
  for (size_t i = 0; i < n; i++) {
    Machine& m = *group[i];
    const Frame* terms[] = {m.op.frame, m.op.other};
    const uint64_t room = rounded(HEADER_NBYTES + m.op.block.nbytes() + SLACK);
    uint64_t payloads = 0;
    for (const Frame* term : terms)
      if (!is_in_place(*term, m.op.gpu)) payloads += rounded(term->header.payload_nbytes);
    Address free = payloads || !direct_ ? allocate(&m, payloads + (direct_ ? 0 : room)) : 0;
    for (size_t k = 0; k < 2; k++) {
      const Header& h = terms[k]->header;
      Job& job = launch->jobs()[k * n + i];
      job.src = reinterpret_cast<Address>(terms[k]->memory) + HEADER_NBYTES;
      if (!is_in_place(*terms[k], m.op.gpu)) {
        job.src = free;
        free += rounded(h.payload_nbytes);
        m.payloads[k] = payload_of(launch, *terms[k]);
      }
      job.n = h.size(), job.nbytes = h.payload_nbytes;
      job.params[0] = h.params[0], job.params[1] = h.params[1];
      launch->results()[k * n + i].wanted = h.has_checksum;
    }
    const Header &a = terms[0]->header, &b = terms[1]->header;
    Job& job = launch->jobs()[2 * n + i];
    job.dst = HEADER_NBYTES + (direct_ ? allocate_frame(&m, room) : free);
    job.src = launch->jobs_at() + i * sizeof(Job);
    job.n = a.size(), job.nbytes = a.nbytes();
    job.params[0] = a.params[0], job.params[1] = launch->jobs_at() + (n + i) * sizeof(Job);
    job.scratch = scratch;
    scratch += scratch_nbytes(own.codec, a.size(), 2);
    Result& result = launch->results()[2 * n + i];
    result.wanted = a.has_checksum, result.parts = coder_.coding().parts;
    Header header = a;
    header.bound = a.bound + b.bound, header.payload_nbytes = 0, header.checksum = 0, header.fallback = false;
    outline(header, result.header);
    m.job = 2 * n + i;
    m.nbytes = m.fetched = 0;
    m.state = State::SIZE;
  }
  return launch;
}

void DeviceWork::issue_sums(Launch* launch) {
  const size_t n = launch->machines.size();
  for (size_t i = 0; i < n; i++) {
    const Machine& m = *launch->machines[i];
    const Frame* terms[] = {m.op.frame, m.op.other};
    for (size_t k = 0; k < 2; k++)
      if (!is_in_place(*terms[k], m.op.gpu))
        send_payload(*launch, *terms[k], m.payloads[k], launch->jobs()[k * n + i].src);
  }
  const Plan& own = *launch->plan;
  launch_kernels(launch, *plan(own.gpu, Verb::DECODE, own.packed, own.dtype), 0, 2 * n, true, true);
  launch_kernels(launch, own, 2 * n, n);
  fetch_results(launch);
  await(launch->lane, nullptr, launch);
}

// Checks a sum's terms; if they are intact, the sum goes on like an encoded frame.
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
  look_at_size(machine);
}

}  // namespace engine
}  // namespace compcoll
