// Part of device.h: running operations on the host if a codec has no kernels for them.
#include "dense.h"
#include "device_blocks.h"

namespace compcoll {
namespace engine {

// Copies an operation's inputs to the host, to run the operation there.
void DeviceWork::bring_down(Machine* machine) {
  const DeviceOp& op = machine->op;
  const bool reads = op.kind == ENCODE || op.kind == DECODE_ADD || op.kind == COPY;
  const bool block_here = op.gpu && op.kind != ADD;
  uint64_t nbytes = block_here ? rounded(op.block.nbytes()) : 0;
  if (op.into_gpu) nbytes += rounded(op.into.nbytes());
  const uint64_t frames = nbytes;
  for (const Frame* frame : {op.frame, op.other})
    if (frame && frame != op.made && frame->gpu) nbytes += rounded(frame->nbytes);
  if (nbytes) machine->staged = pinned().get(nbytes);
  machine->state = State::DOWN;
  EventStream* down = nullptr;  // of the first GPU, which can access the others' memory
  auto fetch = [&](uint8_t* to, const uint8_t* from, uint64_t n, Gpu* gpu) {
    if (!n) return;
    if (!down) down = lane(gpu, true);
    down->gpu->to_host(to, reinterpret_cast<Address>(from), n, down->stream);
  };
  if (block_here && reads) fetch(machine->staged, op.block.data, op.block.nbytes(), op.gpu);
  uint64_t at = frames;
  for (const Frame* frame : {op.frame, op.other}) {
    if (!frame || frame == op.made || !frame->gpu) continue;
    fetch(machine->staged + at, frame->memory, frame->nbytes, frame->gpu);
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
        if (!frame.gpu) continue;
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
  EventStream* in = lane(up, false);
  up->to_device(address_of(target), from, target.nbytes(), in->stream);
  machine->state = State::UP;
  await(in, machine, nullptr);
}

Error DeviceWork::encode_on_host(Machine* machine) {
  const DeviceOp& op = machine->op;
  Span block = op.block;
  block.data = machine->staged;
  Frame& frame = *op.made;
  frame.allocator = &pool_;
  // If the owner takes the frame's values, they are decoded on the device later.
  const Error error =
      machine->coder->encode(block, op.carried, op.taken ? block : Span{nullptr, 0, 0}, &frame, op.base);
  frame.settled = false;
  return error;
}

Error DeviceWork::decode_on_host(Machine* machine) {
  const DeviceOp& op = machine->op;
  const bool adds = op.kind == DECODE_ADD;
  Frame frame = *op.frame;
  if (frame.gpu) frame.memory = machine->staged + (op.gpu ? rounded(op.block.nbytes()) : 0);
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
