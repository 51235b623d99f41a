// Collective calls as programs make them: their arguments, and the blocks of memory that these describe.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm.h"
#include "engine/engine.h"
#include "mpi.h"
#include "statistics.h"
#include "types.h"

namespace compcoll {
namespace layer {

// Positions of a buffer's parts among a call's arguments. Displacements follow counts.
struct Positions { int buf, count, type; };

// The arguments of an operation. `kinds` has a letter for each: a buffer, a number, a vector of numbers, a
// type, types (w), an operation, a root, a communicator.
struct Operation {
  const char *name, *kinds;
  bool send_many, recv_many;  // true if there is a block for each rank
  bool pairs;  // true if each pair of ranks decides alone
  bool neighbours;  // true for neighbourhood collectives
  bool listed;  // true if there is a count for each rank
  Positions send, recv;  // `recv` if one buffer is sent and received into
  int root, reduction, comm;

  constexpr Operation(const char* name, std::string_view all, bool send_many, bool recv_many, bool pairs)
      : name(name),
        kinds(all.data()),
        send_many(send_many),
        recv_many(recv_many),
        pairs(pairs),
        neighbours(name[0] == 'N'),
        listed(all.find('v') != all.npos),
        send{0, int(all.find_first_of("nv")), int(all.find_first_of("tw"))},
        recv{int(all.rfind('b')), int(all.rfind('b')) + 1, int(all.find_last_of("tw"))},
        root(int(all.find('r'))),
        reduction(int(all.find('o'))),
        comm(int(all.find('c'))) {
    if (recv.buf == 0) send.buf = -1;
  }
  bool one_buffer() const { return send.buf < 0; }
};

#define COMPCOLL_FACTS(n, name, method, ...) {#name, __VA_ARGS__},
constexpr Operation operations[] = {ACCELERATED(COMPCOLL_FACTS) OTHERS(COMPCOLL_FACTS)};

// -- sizes, by which small calls go to MPI before any other argument is read

inline int64_t count_of(Word word, bool large_count) { return large_count ? int64_t(word) : int32_t(word); }
inline int64_t listed_at(const void* values, int i, bool large_count) {
  return large_count ? static_cast<const int64_t*>(values)[i] : static_cast<const int32_t*>(values)[i];
}

// Bytes of the largest message if one count tells them: the receive count if it is significant on all ranks,
// else the count of the side that is not in place.
COMPCOLL_INLINE uint64_t nbytes_of_one_count(const Operation& op, const Word* words, bool large_count,
                                             int size) {
  const Word in_place = library().in_place;
  bool by_recv = op.root < 0 || op.reduction >= 0 || op.one_buffer();
  if (!by_recv) by_recv = op.send_many ? words[op.recv.buf] != in_place : words[op.send.buf] == in_place;
  const Positions& side = by_recv ? op.recv : op.send;
  const int64_t n = count_of(words[side.count], large_count);
  uint64_t nbytes = n > 0 ? uint64_t(n) * nbytes_of(words[side.type]) : 0;
  return op.reduction < 0 || op.send_many || nbytes <= uint64_t(size) ? nbytes : nbytes / uint64_t(size);
}

// Bytes of the largest message if there is a count for each rank, from the counts that are significant on
// this rank.
uint64_t nbytes_of_counts(const Operation& op, const Word* words, bool large_count, const Comm& comm);

// True if all ranks reserve tags or compare names for the call, even if it is small on this rank.
inline bool concerns_all_ranks(const Operation& op, Form form, const Comm& comm) {
  return op.pairs && (form != blocking || comm.settings.names) && comm.size > 1 &&
         comm.settings.min_nbytes != never;
}

// True if a call is small, so that MPI carries it out. Sets `nbytes` to the size of its largest message.
COMPCOLL_INLINE bool is_small(Name name, Form form, const Word* words, bool large_count, Comm& comm,
                              uint64_t* nbytes) {
  const Operation& op = operations[name];
  *nbytes = op.listed ? nbytes_of_counts(op, words, large_count, comm)
                      : nbytes_of_one_count(op, words, large_count, comm.size);
  if (*nbytes >= comm.limit.load(std::memory_order_relaxed)) return false;
  if (op.reduction >= 0 && !predefined_at(library().handle_of(words[op.recv.type])).handle) return false;
  if (concerns_all_ranks(op, form, comm)) return false;
  if (reentrant) return true;
  comm.count(name);
  comm.last.note_small(name);
  return true;
}

// -- calls

enum SideName { send_side, recv_side };

// One buffer argument of a call.
struct BufferArgument {
  bool used = false;  // true if this rank exchanges blocks of it
  bool given = false;  // true if the argument is significant
  bool in_place = false;
  bool many = false;  // true if there is a block for each rank
  Word buf = 0;
  int64_t count = 0;  // of each block, if `counts` is null
  const void *counts = nullptr, *displs = nullptr;  // counts and displacements for each rank
  const Type* type = nullptr;
  Word types = 0;  // address of an array of handles in C's form, in place of `type`
};

// A block of the caller's memory, which is one message between two ranks.
struct Block {
  SideName side = send_side;
  int64_t entries = 0, displ = 0;  // `displ` in bytes
  const Type* type = nullptr;
  uint64_t nbytes() const { return type ? uint64_t(entries) * type->nbytes : 0; }
};

// The dimensions of a block, in elements; empty if its datatype has no shape.
std::vector<uint64_t> shape_of(const Block& block);

// The layout of a block's bytes in memory.
struct BlockMemory {
  SideName side = send_side;
  bool any = false;  // true if there is memory at all
  bool copied = false;  // true if a copy is sent, because received data overwrite the block
  int64_t offset = 0;
  uint64_t nbytes = 0;
  engine::LayoutRef layout;  // null if the bytes are contiguous
};
BlockMemory memory_of(const Block& block);

// A call with the program's unchanged arguments.
struct Invocation {
  Name name;
  Form form;
  bool large_count;  // true if counts and displacements have 64 bits
  const Word* words;  // all arguments, in C's form
  int n_words;  // includes those of the form; the last one is the address of the request, if any
  Comm& comm;
  NextFunction& next;  // the C function that the layer calls next
  const void* caller;  // an address in the program
};

class Check;
class HostCopies;

// An invocation whose arguments have been read, once.
struct CollectiveCall : Invocation {
  CollectiveCall(const Invocation& from, uint64_t message_nbytes);

  const Operation& op;
  const uint64_t message_nbytes;  // of this rank's largest message, as both of its ranks know it
  BufferArgument buffers[2];
  bool valid = true;  // true if all used buffers have a datatype; else MPI reports the error
  Word request = 0;  // the layer's
  int gpus[2] = {engine::NO_GPU, engine::NO_GPU};  // of the sent and the received data
  std::shared_ptr<engine::Marks> marks = nullptr;  // events after the caller's work there
  std::shared_ptr<HostCopies> host_copies = nullptr;  // of a call on host copies of GPU memory
  std::shared_ptr<Check> check = nullptr;  // of a nonblocking call, whose comparison ends with it

  int root() const { return op.root < 0 ? 0 : int32_t(words[op.root]); }
  bool on_devices() const { return gpus[send_side] != engine::NO_GPU || gpus[recv_side] != engine::NO_GPU; }
  // True if MPI gets host copies of the call's GPU memory.
  bool on_copies() const { return on_devices() && !comm.settings.devices; }
  int64_t listed(const void* values, int i) const { return listed_at(values, i, large_count); }

  // The key by which this rank looks up the call's plan.
  std::vector<int64_t> key() const;
  // The datatype that all ranks of a jointly decided call know; null if it is not given.
  const Type* decisive() const;
  // The operation that adds values of a type for which MPI has no sum; 0 for any other call.
  Word own_sum() const;
  // The block for a rank, or the only block.
  Block block(SideName side, int i) const;
  // The send and receive blocks in the order of the algorithms: compcoll/algorithms/catalog.py.
  void blocks(std::vector<Block>* send, std::vector<Block>* recv) const;
  // `is_aliased`: a buffer of this rank is both sent and received into, which MPI forbids without
  // MPI_IN_PLACE. `differs`: the block that this rank sends to itself differs in size from the block that it
  // receives from itself.
  bool is_aliased() const;
  bool differs() const;
  // The block that this rank sends to itself, and the block that receives it. False if there is none, or if
  // one buffer is both.
  bool own(Block* sent, Block* received) const;
  // Replaces GPU memory by host copies. Sent data are copied at once, or at each start of a persistent call.
  // `all`: the rank's own block is copied, too; else it may stay on its GPU.
  void use_host_copies(bool all);

 private:
  int64_t count(SideName side, int i) const;
  const Type* type(SideName side, int i) const;
  bool exchanges_own() const { return buffers[send_side].used && buffers[recv_side].used; }
  bool sends_received_ = false;  // true if the sent data are in the receive buffer
};

// Arguments of MPI's part of a call, without the messages that the engine carries.
class RemainingCall {
 public:
  RemainingCall(const CollectiveCall& call, const Word* words, const std::vector<uint8_t>& sent,
                const std::vector<uint8_t>& received);
  const Word* words() const { return words_.data(); }
  Word* words() { return words_.data(); }

 private:
  std::vector<Word> words_;
  std::vector<char> counts_[2];
};

}  // namespace layer
}  // namespace compcoll
