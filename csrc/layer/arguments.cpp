#include "arguments.h"

#include <algorithm>

namespace compcoll {
namespace layer {
namespace {

// Bytes of the largest message where there are counts for each rank.
uint64_t of_counts(const Call& call) {
  const Operation& op = call.op();
  uint64_t most = 0;
  const bool at_root = op.root < 0 || call.root() == call.comm.rank;
  auto raise = [&](int64_t n, Word type) {
    if (n > 0) most = std::max(most, uint64_t(n) * nbytes_of(type));
  };
  auto look = [&](bool many, const Positions& side) {
    Word counts = call.words[side.count], type = call.words[side.type];
    if (call.words[side.buf] == library().in_place || (op.root >= 0 && many != at_root)) return;
    if (!many) return raise(call.count_at(side.count), type);
    const bool typed = op.kinds[side.type] == 'w';
    for (int i = 0; counts && i < call.comm.size; i++) {
      int64_t n = call.listed(reinterpret_cast<const void*>(counts), i);
      if (n <= 0) continue;
      const char* types = reinterpret_cast<const char*>(type);
      raise(n, typed ? library().handle_at(types + size_t(i) * library().handle_nbytes()) : type);
    }
  };
  if (op.pairs) look(op.send_many, op.send);
  look(op.kinds[op.recv.count] == 'v', op.recv);
  return most;
}

}  // namespace

uint64_t message_nbytes(const Call& call) {
  return call.op().listed ? of_counts(call)
                          : nbytes_of_one_count(call.op(), call.words, call.wide, call.comm.size);
}

Arguments::Arguments(const Call& call) : call_(call) {
  const Operation& op = call.op();
  const Library& mpi = library();
  const bool at_root = op.root < 0 || call.root() == call.comm.rank;
  sound = op.recv.buf >= 0;
  if (!sound) return;
  auto read = [&](SideName name, const Positions& at, bool many) {
    Side& side = sides[name];
    side.many = many;
    side.buf = call.words[at.buf];
    side.in_place = side.buf == mpi.in_place;
    if (op.kinds[at.count] == 'v') {
      side.counts = reinterpret_cast<const void*>(call.words[at.count]);
      if (op.kinds[at.count + 1] == 'v')
        side.displs = reinterpret_cast<const void*>(call.words[at.count + 1]);
    } else {
      side.count = call.count_at(at.count);
    }
    const bool sends = name == send_side;
    side.used = !side.in_place && (op.root < 0 || at_root || op.one_buffer() || sends != op.send_many);
    side.given = side.used;
    if (op.pairs && op.root >= 0) side.used = !side.in_place && at_root == many;  // its own block is MPI's
    if (op.kinds[at.type] == 'w') {
      side.types = call.words[at.type];
    } else if (side.given) {
      side.type = type_of(call.words[at.type]);
      sound = sound && side.type;
    }
  };
  if (!op.one_buffer()) read(send_side, op.send, op.send_many);
  read(recv_side, op.recv, op.recv_many);
  if (op.reduction >= 0 && sides[send_side].in_place &&
      op.send_many) {  // whose blocks lie in the receive buffer
    sides[send_side] = sides[recv_side];
    sides[send_side].many = sends_received_ = true;
  }
}

int64_t Arguments::count(SideName name, int i) const {
  const Side& side = sides[name];
  return side.counts ? call_.listed(side.counts, i) : side.count;
}

const Type* Arguments::type(SideName name, int i) const {
  const Side& side = sides[name];
  if (!side.types) return side.type;
  const Library& mpi = library();
  return type_of(mpi.handle_at(reinterpret_cast<const char*>(side.types) + size_t(i) * mpi.handle_nbytes()));
}

std::vector<int64_t> Arguments::key() const {
  std::vector<int64_t> key = {call_.name | call_.form << 8 | sends_received_ << 16, call_.root(),
                              call_.gpus[send_side], call_.gpus[recv_side]};
  for (const Side& side : sides) {
    key.push_back(side.used | side.in_place << 1);
    if (!side.used) continue;
    const SideName name = &side == sides ? send_side : recv_side;
    if (!side.counts) {
      key.push_back(side.count);
      key.push_back(int64_t(side.type->id));
      continue;
    }
    if (side.type) key.push_back(int64_t(side.type->id));
    for (int i = 0; i < call_.comm.size; i++) {
      const int64_t n = call_.listed(side.counts, i);
      key.push_back(n);
      if (side.displs) key.push_back(n ? call_.listed(side.displs, i) : 0);
      if (!side.types) continue;
      const Type* one = n > 0 ? type(name, i) : nullptr;
      key.push_back(one ? int64_t(one->id) : 0);
    }
  }
  return key;
}

const Type& Arguments::decisive() const {
  const Operation& op = call_.op();
  const bool by_send = op.root >= 0 && !sides[recv_side].used;
  return *sides[by_send ? send_side : recv_side].type;
}

Block Arguments::block(SideName name, int i) const {
  const Side& side = sides[name];
  Block block;
  block.side = sends_received_ ? recv_side : name;
  block.entries = std::max<int64_t>(count(name, i), 0);
  if (!block.entries) return block;
  block.type = type(name, i);
  if (!block.type) return block;
  if (side.types) block.displ = call_.listed(side.displs, i);
  else if (side.displs) block.displ = call_.listed(side.displs, i) * block.type->extent;
  else if (side.many) block.displ = i * block.entries * block.type->extent;
  return block;
}

void Arguments::blocks(std::vector<Block>* send, std::vector<Block>* recv) const {
  const Operation& op = call_.op();
  const int size = call_.comm.size;
  auto add = [&](std::vector<Block>* all, SideName name) {
    const Side& side = sides[name];
    for (int i = 0; side.used && i < (side.many ? size : 1); i++) all->push_back(block(name, i));
  };
  if (op.reduction >= 0 && op.listed) {  // Reduce_scatter: one buffer, cut by the counts
    const Side& whole = sides[sides[send_side].used ? send_side : recv_side];
    const SideName name = sides[send_side].used ? send_side : recv_side;
    int64_t displ = 0;
    auto* all = name == send_side ? send : recv;
    for (int i = 0; i < size; i++) {
      Block one;
      one.side = name, one.type = whole.type, one.displ = displ, one.entries = call_.listed(whole.counts, i);
      displ += one.entries * whole.type->extent;
      all->push_back(one);
    }
    Block target;
    target.side = recv_side, target.type = whole.type,
    target.entries = call_.listed(whole.counts, call_.comm.rank);
    recv->push_back(target);
    return;
  }
  const bool in_place = sides[send_side].in_place || sides[recv_side].in_place;
  if (op.reduction >= 0 && op.send_many) {  // Reduce_scatter_block
    add(sends_received_ ? recv : send, send_side);
    recv->push_back(block(recv_side, 0));
    return;
  }
  add(send, send_side);
  add(recv, recv_side);
  // In Alltoall blocks arrive where others wait to be sent.
  if (in_place && op.send_many && op.recv_many) *send = *recv;
}

bool Arguments::own(Block* sent, Block* received) const {
  const Operation& op = call_.op();
  if (op.one_buffer() || sends_received_ || !sides[send_side].used || !sides[recv_side].used) return false;
  *sent = block(send_side, op.send_many ? call_.comm.rank : 0);
  *received = block(recv_side, op.recv_many ? call_.comm.rank : 0);
  return true;
}

bool Arguments::is_aliased() const {
  Block sent, received;
  if (!own(&sent, &received)) return false;
  if (call_.op().reduction >= 0) return sides[send_side].buf == sides[recv_side].buf && received.nbytes();
  if (!sent.nbytes() || !received.nbytes()) return false;  // which then have types
  return sides[send_side].buf + Word(sent.displ + sent.type->lower) ==
         sides[recv_side].buf + Word(received.displ + received.type->lower);
}

bool Arguments::differs() const {
  Block sent, received;
  return call_.op().reduction < 0 && own(&sent, &received) && sent.nbytes() != received.nbytes();
}

Room room_of(const Block& block) {
  Room room;
  room.side = block.side;
  if (!block.entries || !block.type || !block.type->nbytes) return room;
  Piece piece = block.type->many(block.entries);
  room.any = true;
  room.nbytes = piece.nbytes();
  room.offset = block.displ + piece.offset;
  if (!piece.is_run()) room.layout = piece.layout;
  return room;
}

}  // namespace layer
}  // namespace compcoll
