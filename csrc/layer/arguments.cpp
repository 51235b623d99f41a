#include "arguments.h"

#include <algorithm>

#include "devices.h"

namespace compcoll {
namespace layer {

uint64_t nbytes_of_counts(const Operation& op, const Word* words, bool large_count, const Comm& comm) {
  uint64_t most = 0;
  const bool at_root = op.root < 0 || int32_t(words[op.root]) == comm.rank;
  auto raise = [&](int64_t n, Word type) {
    if (n > 0) most = std::max(most, uint64_t(n) * nbytes_of(type));
  };
  auto look = [&](bool many, const Positions& side) {
    Word counts = words[side.count], type = words[side.type];
    if (words[side.buf] == library().in_place || (op.root >= 0 && many != at_root)) return;
    if (!many) return raise(count_of(words[side.count], large_count), type);
    const bool typed = op.kinds[side.type] == 'w';
    for (int i = 0; counts && i < comm.size; i++) {
      int64_t n = listed_at(reinterpret_cast<const void*>(counts), i, large_count);
      if (n <= 0) continue;
      const char* types = reinterpret_cast<const char*>(type);
      raise(n, typed ? library().handle_at(types + size_t(i) * library().handle_nbytes()) : type);
    }
  };
  if (op.pairs) look(op.send_many, op.send);
  look(op.kinds[op.recv.count] == 'v', op.recv);
  return most;
}

CollectiveCall::CollectiveCall(const Invocation& from, uint64_t message_nbytes)
    : Invocation(from), op(operations[from.name]), message_nbytes(message_nbytes) {
  const bool at_root = op.root < 0 || root() == comm.rank;
  valid = op.recv.buf >= 0;
  if (!valid) return;
  auto read = [&](SideName which, const Positions& at, bool many) {
    BufferArgument& side = buffers[which];
    side.many = many;
    side.buf = words[at.buf];
    side.in_place = side.buf == library().in_place;
    if (op.kinds[at.count] == 'v') {
      side.counts = reinterpret_cast<const void*>(words[at.count]);
      if (op.kinds[at.count + 1] == 'v') side.displs = reinterpret_cast<const void*>(words[at.count + 1]);
    } else {
      side.count = count_of(words[at.count], large_count);
    }
    const bool sends = which == send_side;
    side.used = !side.in_place && (op.root < 0 || at_root || op.one_buffer() || sends != op.send_many);
    side.given = side.used;
    // MPI copies the root's own block.
    if (op.pairs && op.root >= 0) side.used = !side.in_place && at_root == many;
    if (op.kinds[at.type] == 'w') {
      side.types = words[at.type];
    } else if (side.given) {
      side.type = type_of(words[at.type]);
      valid = valid && side.type;
    }
  };
  if (!op.one_buffer()) read(send_side, op.send, op.send_many);
  read(recv_side, op.recv, op.recv_many);
  if (op.reduction >= 0 && buffers[send_side].in_place &&
      op.send_many) {  // the sent blocks are in the receive buffer
    buffers[send_side] = buffers[recv_side];
    buffers[send_side].many = sends_received_ = true;
  }
}

int64_t CollectiveCall::count(SideName side, int i) const {
  const BufferArgument& buffer = buffers[side];
  return buffer.counts ? listed(buffer.counts, i) : buffer.count;
}

const Type* CollectiveCall::type(SideName side, int i) const {
  const BufferArgument& buffer = buffers[side];
  if (!buffer.types) return buffer.type;
  const Library& mpi = library();
  return type_of(
      mpi.handle_at(reinterpret_cast<const char*>(buffer.types) + size_t(i) * mpi.handle_nbytes()));
}

std::vector<int64_t> CollectiveCall::key() const {
  std::vector<int64_t> key = {name | form << 8 | sends_received_ << 16, root(), gpus[send_side],
                              gpus[recv_side]};
  for (const BufferArgument& side : buffers) {
    key.push_back(side.used | side.in_place << 1);
    if (!side.used) continue;
    const SideName which = &side == buffers ? send_side : recv_side;
    if (!side.counts) {
      key.push_back(side.count);
      key.push_back(int64_t(side.type->id));
      continue;
    }
    if (side.type) key.push_back(int64_t(side.type->id));
    for (int i = 0; i < comm.size; i++) {
      const int64_t n = listed(side.counts, i);
      key.push_back(n);
      if (side.displs) key.push_back(n ? listed(side.displs, i) : 0);
      if (!side.types) continue;
      const Type* one = n > 0 ? type(which, i) : nullptr;
      key.push_back(one ? int64_t(one->id) : 0);
    }
  }
  return key;
}

const Type* CollectiveCall::decisive() const {
  const bool by_send = op.root >= 0 && !buffers[recv_side].used;
  return buffers[by_send ? send_side : recv_side].type;
}

Word CollectiveCall::own_sum() const {
  if (op.reduction < 0 || library().handle_of(words[op.reduction]) != library().sum) return 0;
  const Type* type = decisive();
  return type ? type->own_sum : 0;
}

Block CollectiveCall::block(SideName side, int i) const {
  const BufferArgument& buffer = buffers[side];
  Block block;
  block.side = sends_received_ ? recv_side : side;
  block.entries = std::max<int64_t>(count(side, i), 0);
  if (!block.entries) return block;
  block.type = type(side, i);
  if (!block.type) return block;
  if (buffer.types) block.displ = listed(buffer.displs, i);
  else if (buffer.displs) block.displ = listed(buffer.displs, i) * block.type->extent;
  else if (buffer.many) block.displ = i * block.entries * block.type->extent;
  return block;
}

void CollectiveCall::blocks(std::vector<Block>* send, std::vector<Block>* recv) const {
  const int size = comm.size;
  auto add = [&](std::vector<Block>* all, SideName side) {
    const BufferArgument& buffer = buffers[side];
    for (int i = 0; buffer.used && i < (buffer.many ? size : 1); i++) all->push_back(block(side, i));
  };
  if (op.reduction >= 0 && op.listed) {  // Reduce_scatter: one buffer, cut by the counts
    const SideName side = buffers[send_side].used ? send_side : recv_side;
    const BufferArgument& whole = buffers[side];
    int64_t displ = 0;
    auto* all = side == send_side ? send : recv;
    for (int i = 0; i < size; i++) {
      Block one;
      one.side = side, one.type = whole.type, one.displ = displ, one.entries = listed(whole.counts, i);
      displ += one.entries * whole.type->extent;
      all->push_back(one);
    }
    Block target;
    target.side = recv_side, target.type = whole.type, target.entries = listed(whole.counts, comm.rank);
    recv->push_back(target);
    return;
  }
  const bool in_place = buffers[send_side].in_place || buffers[recv_side].in_place;
  if (op.reduction >= 0 && op.send_many) {  // Reduce_scatter_block
    add(sends_received_ ? recv : send, send_side);
    recv->push_back(block(recv_side, 0));
    return;
  }
  add(send, send_side);
  add(recv, recv_side);
  // An in-place Alltoall receives each block into the memory of a block that it sends.
  if (in_place && op.send_many && op.recv_many) *send = *recv;
}

bool CollectiveCall::own(Block* sent, Block* received) const {
  if (op.one_buffer() || sends_received_ || !buffers[send_side].given || !buffers[recv_side].given)
    return false;
  *sent = block(send_side, op.send_many ? comm.rank : 0);
  *received = block(recv_side, op.recv_many ? comm.rank : 0);
  return true;
}

bool CollectiveCall::is_aliased() const {
  Block sent, received;
  if (!exchanges_own() || !own(&sent, &received)) return false;
  if (op.reduction >= 0) return buffers[send_side].buf == buffers[recv_side].buf && received.nbytes();
  if (!sent.nbytes() || !received.nbytes()) return false;  // blocks with bytes have types
  return buffers[send_side].buf + Word(sent.displ + sent.type->lower) ==
         buffers[recv_side].buf + Word(received.displ + received.type->lower);
}

bool CollectiveCall::differs() const {
  Block sent, received;
  return op.reduction < 0 && exchanges_own() && own(&sent, &received) && sent.nbytes() != received.nbytes();
}

void CollectiveCall::use_host_copies(bool all) {
  const std::vector<uint8_t> none;
  host_copies = std::make_shared<HostCopies>(*this, none, none, all);
  words = host_copies->words();
  for (SideName side : {send_side, recv_side}) {
    const int at = side == send_side && !sends_received_ ? op.send.buf : op.recv.buf;
    if (at >= 0) buffers[side].buf = words[at];
    gpus[side] = engine::NO_GPU;
  }
  if (form != persistent) host_copies->copy_to_host(marks);
}

std::vector<uint64_t> shape_of(const Block& block) {
  std::vector<uint64_t> shape;
  if (!block.type || block.type->basic || !block.type->shaped) return shape;
  if (block.entries != 1) shape.push_back(uint64_t(block.entries));
  shape.insert(shape.end(), block.type->shape.begin(), block.type->shape.end());
  if (shape.size() < 2) shape.clear();
  return shape;
}

BlockMemory memory_of(const Block& block) {
  BlockMemory memory;
  memory.side = block.side;
  if (!block.entries || !block.type || !block.type->nbytes) return memory;
  Piece piece = block.type->many(block.entries);
  memory.any = true;
  memory.nbytes = piece.nbytes();
  memory.offset = block.displ + piece.offset;
  if (!piece.is_run()) memory.layout = piece.layout;
  return memory;
}

// -- MPI's part of a call

RemainingCall::RemainingCall(const CollectiveCall& call, const Word* words, const std::vector<uint8_t>& sent,
                             const std::vector<uint8_t>& received)
    : words_(words, words + call.n_words) {
  const Operation& op = call.op;
  const size_t width = call.large_count ? 8 : 4;
  auto mask = [&](const Positions& at, bool many, const std::vector<uint8_t>& gone,
                  std::vector<char>* counts) {
    bool any = false;
    for (uint8_t one : gone) any = any || one;
    if (!any || words_[size_t(at.buf)] == library().in_place) return;
    if (!many) {
      words_[size_t(at.count)] = 0;
      return;
    }
    const char* given = reinterpret_cast<const char*>(words_[size_t(at.count)]);
    counts->assign(given, given + gone.size() * width);
    for (size_t i = 0; i < gone.size(); i++)
      if (gone[i]) std::fill_n(counts->begin() + long(i * width), width, char(0));
    words_[size_t(at.count)] = reinterpret_cast<Word>(counts->data());
  };
  mask(op.send, op.send_many, sent, counts_);
  mask(op.recv, op.recv_many, received, counts_ + 1);
}

}  // namespace layer
}  // namespace compcoll
