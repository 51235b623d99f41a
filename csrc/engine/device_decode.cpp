// The part of device.h that decodes, adds frames, copies and converts.
#include <algorithm>
#include <cstring>

#include "device_blocks.h"
#include "rounding.h"

namespace compcoll {
namespace engine {
namespace {

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

}  // namespace

// Copies the payload of a frame to a launch's memory.
void DeviceWork::send_payload(Launch* launch, const Frame& frame, Address to) {
  Gpu& gpu = *launch->gpu;
  const uint8_t* payload = frame.memory + HEADER_NBYTES;
  const uint64_t nbytes = frame.header.payload_nbytes;
  if (frame.gpu) return gpu.on_device(to, reinterpret_cast<Address>(payload), nbytes, launch->lane->stream);
  if (frame.allocator != &pinned() || frame.lent) {  // which the driver would have the host wait for
    launch->staged.push_back(pinned().get(nbytes));
    memcpy(launch->staged.back(), payload, nbytes);
    payload = launch->staged.back();
  }
  gpu.to_device(to, payload, nbytes, launch->lane->stream);
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
  enqueue(machine, adds && op.block.dtype >= FLOAT16 ? op.block.dtype : 0);
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
    scratch += scratch_nbytes(own.codec, units(own.codec, reals(h), h.nbytes()));
    if (!is_in_place(frame, group[0]->op.gpu)) room += rounded(h.payload_nbytes);
  }
  Launch* launch = new_launch(group, false, finds ? 2 * n : n, rounded(scratch) + room);
  uint64_t free_scratch = rounded(launch->control_nbytes()), free = free_scratch + rounded(scratch);
  for (size_t i = 0; i < n; i++) {
    const DeviceOp& op = group[i]->op;
    const Header& h = op.frame->header;
    const uint32_t ndim = h.ndim ? h.ndim : 1;
    Job& job = launch->jobs()[i];
    if (is_in_place(*op.frame, op.gpu)) {
      job.src = reinterpret_cast<Address>(op.frame->memory) + HEADER_NBYTES;
    } else {
      job.src = launch->at(free);
      free += rounded(h.payload_nbytes);
    }
    job.dst = address_of(op.block);
    job.n = units(own.codec, reals(h), h.nbytes());
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
    if (!is_in_place(*op.frame, op.gpu)) send_payload(launch, *op.frame, launch->jobs()[i].src);
    if (group[i]->clears) launch->gpu->clear(address_of(op.block), op.block.nbytes(), launch->lane->stream);
  }
  launch_kernels(launch, own, 0, n, sums_up);
  if (finds) launch_kernels(launch, *plan(first_op.gpu, Verb::FIND_LARGEST, 0, dtype), n, n);
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
  if (op.block.dtype == op.into.dtype) {
    Lane* in = lane(op.into_gpu, false);
    machine->state = State::UP;
    if (op.block.n)
      op.into_gpu->on_device(address_of(op.into), address_of(op.block), op.block.nbytes(), in->stream);
    return await(in, machine, nullptr);
  }
  machine->plan = plan(op.gpu, Verb::CONVERT, op.block.dtype, op.into.dtype);
  const bool narrows = op.into.nbytes() < op.block.nbytes();
  if (op.gpu != op.into_gpu || !op.block.n || !is_aligned(op.block) || !is_aligned(op.into))
    return bring_down(machine);
  enqueue(machine, narrows ? op.into.dtype : 0);
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
  await(launch->lane, nullptr, launch);
}

// Two frames are added where they are; on the host where the codec has no kernels for that.
void DeviceWork::sum(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Header &a = op.frame->header, &b = op.other->header;
  if (!alike(a, b) || !op.gpu || !op.block.n || !is_size_sound(a) || !is_size_sound(b))
    return bring_down(machine);
  machine->plan = plan(op.gpu, Verb::SUM, a.codec, a.dtype);
  enqueue(machine);
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
      if (!is_in_place(*frame, op.gpu)) payloads += rounded(frame->header.payload_nbytes);
  }
  Launch* launch = new_launch(group, true, 3 * n, rounded(scratch) + payloads + (direct_ ? 0 : n * room));
  uint64_t free_scratch = rounded(launch->control_nbytes()), free = free_scratch + rounded(scratch);
  std::vector<std::pair<const Frame*, Address>> copies;
  for (size_t i = 0; i < n; i++) {
    Machine& m = *group[i];
    const Frame* terms[] = {m.op.frame, m.op.other};
    for (size_t k = 0; k < 2; k++) {
      const Header& h = terms[k]->header;
      Job& job = launch->jobs()[k * n + i];
      job.src = reinterpret_cast<Address>(terms[k]->memory) + HEADER_NBYTES;
      if (!is_in_place(*terms[k], m.op.gpu)) {
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
    job.dst = HEADER_NBYTES + (direct_ ? allocate_frame(&m, room) : launch->at(free));
    if (!direct_) free += room;
    const uint64_t jobs = launch->at(3 * n * sizeof(Result));
    job.src = jobs + i * sizeof(Job);
    job.n = a.size(), job.nbytes = a.nbytes();
    job.params[0] = a.params[0], job.params[1] = jobs + (n + i) * sizeof(Job);
    job.scratch = launch->at(free_scratch);
    free_scratch += scratch_nbytes(own.codec, a.size(), 2);
    Result& result = launch->results()[2 * n + i];
    result.wanted = a.has_checksum, result.parts = coder_.coding().parts;
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

}  // namespace engine
}  // namespace compcoll
