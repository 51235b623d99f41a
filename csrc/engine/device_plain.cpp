// Part of device.h: frames of raw values. They need copies but no kernels, so that ranks which share a GPU do
// not wait for turns on it.
#include <cstring>

#include "device_blocks.h"

namespace compcoll {
namespace engine {

// Copies a block to the host, while the host writes its header.
void DeviceWork::copy_down(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Span& block = op.block;
  Header header = {raw_name(), block.dtype,    block.ndim(), {block.dim(0), block.dim(1), block.dim(2)},
                   {0, 0},     block.nbytes(), op.carried,   0,
                   false,      false};
  machine->nbytes = HEADER_NBYTES + block.nbytes();
  hold_frame(machine);
  EventStream* out = lane(op.gpu, true);
  op.gpu->to_host(op.made->memory + HEADER_NBYTES, address_of(block), block.nbytes(), out->stream);
  machine->state = State::FRAME;
  await(out, machine, nullptr);
  pack(machine->coder->level(), &header, op.made->memory);
}

void DeviceWork::copy_up(Machine* machine) {
  const DeviceOp& op = machine->op;
  const Frame& frame = *op.frame;
  const uint64_t nbytes = frame.header.payload_nbytes;
  const uint8_t* payload = frame.memory + HEADER_NBYTES;
  if (!is_pinned(frame)) {
    machine->staged = pinned().get(nbytes);
    memcpy(machine->staged, payload, nbytes);
    payload = machine->staged;
  }
  EventStream* in = lane(op.gpu, false);
  op.gpu->to_device(address_of(op.block), payload, nbytes, in->stream);
  machine->bound = frame.bound();
  machine->state = State::UP;
  await(in, machine, nullptr);
}

}  // namespace engine
}  // namespace compcoll
