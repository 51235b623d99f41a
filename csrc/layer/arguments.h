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

// Where an argument's parts stand among those of a call; displacements come behind counts.
struct Positions { int buf, count, type; };

// An operation's arguments. `kinds` has a letter for each: a buffer, a number, a vector of numbers, a type,
// types (w), an operation, a root, a communicator.
struct Operation {
  const char *name, *kinds;
  bool send_many, recv_many;  // whether there is a block for each rank
  bool pairs;  // whether each pair of ranks decides alone
  bool neighbours;  // whether there are blocks for ranks beside this one
  bool listed;  // whether there are counts for each rank
  Positions send, recv;  // of one buffer alone, which is sent and received into, the latter
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

// -- sizes, which tell calls that are MPI's before anything else is read

inline int64_t count_of(Word word, bool large_count) { return large_count ? int64_t(word) : int32_t(word); }
inline int64_t listed_at(const void* values, int i, bool large_count) {
  return large_count ? static_cast<const int64_t*>(values)[i] : static_cast<const int32_t*>(values)[i];
}

// Bytes of the largest message where one count tells that: the receive count where it is significant on all
// ranks, else that of the side which is not in place.
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

// Bytes of the largest message where there are counts for each rank, as far as they are significant here.
uint64_t nbytes_of_counts(const Operation& op, const Word* words, bool large_count, const Comm& comm);

// True if all ranks take part in what a call does beside MPI, however small it is on this one.
inline bool concerns_all_ranks(const Operation& op, Form form, const Comm& comm) {
  return op.pairs && (form != blocking || comm.settings.names) && comm.size > 1 &&
         comm.settings.min_nbytes != never;
}

// True if a call is small: MPI's, and that is all. `nbytes`: of its largest message.
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

// One buffer of a call.
struct BufferArgument {
  bool used = false;  // whether this rank exchanges blocks of it
  bool given = false;  // whether MPI looks at it
  bool in_place = false;
  bool many = false;  // whether there is a block for each rank
  Word buf = 0;
  int64_t count = 0;  // of each block, where there are no
  const void *counts = nullptr, *displs = nullptr;  // counts and displacements for each rank
  const Type* type = nullptr;
  Word types = 0;  // in place of that the address of an array of handles, as C has it
};

// A block of the caller's memory: a message between two ranks.
struct Block {
  SideName side = send_side;
  int64_t entries = 0, displ = 0;  // the latter in bytes
  const Type* type = nullptr;
  uint64_t nbytes() const { return type ? uint64_t(entries) * type->nbytes : 0; }
};

// The dimensions of a block whose datatype has any, in elements.
std::vector<uint64_t> shape_of(const Block& block);

// Where a block's bytes lie.
struct BlockMemory {
  SideName side = send_side;
  bool any = false;  // whether there is memory at all
  bool copied = false;  // whether a copy is sent, as what is received takes the place of what is sent
  int64_t offset = 0;
  uint64_t nbytes = 0;
  engine::LayoutRef layout;  // null where the bytes lie side by side
};
BlockMemory memory_of(const Block& block);

// A call as the program makes it.
struct Invocation {
  Name name;
  Form form;
  bool large_count;  // whether counts and displacements have 64 bits
  const Word* words;  // all arguments of C
  int n_words;  // those of the form included: the address of a request is the last
  Comm& comm;
  NextFunction& next;  // the function of C that carries the call out behind the layer
  const void* caller;  // an address in the program
};

class Check;
class HostCopies;

// An invocation with its arguments, which are read once.
struct CollectiveCall : Invocation {
  CollectiveCall(const Invocation& from, uint64_t message_nbytes);

  const Operation& op;
  const uint64_t message_nbytes;  // of the largest message of this rank, as all that take part in it know it
  BufferArgument buffers[2];
  bool valid = true;  // whether all that is used has a datatype; else MPI has something to say
  Word request = 0;  // the layer's
  int gpus[2] = {engine::NO_GPU, engine::NO_GPU};  // that what is sent, and received, lies on
  std::shared_ptr<engine::Marks> marks = nullptr;  // behind what the caller has started there
  std::shared_ptr<HostCopies> host_copies = nullptr;  // of a call on copies of that
  std::shared_ptr<Check> check = nullptr;  // of a nonblocking one, whose comparison ends with it

  int root() const { return op.root < 0 ? 0 : int32_t(words[op.root]); }
  bool on_devices() const { return gpus[send_side] != engine::NO_GPU || gpus[recv_side] != engine::NO_GPU; }
  // True if MPI gets copies on the host of what the call has on GPUs.
  bool on_copies() const { return on_devices() && !comm.settings.devices; }
  int64_t listed(const void* values, int i) const { return listed_at(values, i, large_count); }

  // What tells this call from others on this rank.
  std::vector<int64_t> key() const;
  // The datatype by which all ranks know the elements of a call that they decide together; null where it is
  // not given.
  const Type* decisive() const;
  // The operation that adds up values of a type which MPI has no sum for; 0 in all other calls.
  Word own_sum() const;
  // The block for a rank, or the one that there is.
  Block block(SideName side, int i) const;
  // The blocks that are sent and received, as algorithms want them: compcoll/algorithms/catalog.py.
  void blocks(std::vector<Block>* send, std::vector<Block>* recv) const;
  // Whether a buffer of this rank is both sent and received into, which MPI forbids where it is not
  // MPI_IN_PLACE; and whether the block that it sends to itself has another size there than where it is
  // received.
  bool is_aliased() const;
  bool differs() const;
  // The block that this rank sends to itself, and where it is received; false where there is none, or one
  // buffer is both.
  bool own(Block* sent, Block* received) const;
  // Has copies on the host take the place of what lies on GPUs. What is sent is copied at once; in a
  // persistent call at each start. `all`: the rank's own block too, which else may stay on its GPU.
  void use_host_copies(bool all);

 private:
  int64_t count(SideName side, int i) const;
  const Type* type(SideName side, int i) const;
  bool exchanges_own() const { return buffers[send_side].used && buffers[recv_side].used; }
  bool sends_received_ = false;  // whether what is sent lies in the receive buffer
};

// Words of a call, or of one on copies, in which MPI has no part in some of the messages.
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
