// Collective calls: their arguments, what was decided on calls like them, and how they are carried out.
//
// A call is looked up by what this rank's arguments say. What is found was made by Python once, and says
// which schedules the engine runs, on which blocks of the caller's memory, and what MPI has to do beside
// them. Calls of all forms take the same way, and are then waited for, left to the engine, or kept for later
// starts.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm.h"
#include "count.h"
#include "engine/clock.h"
#include "engine/engine.h"
#include "errors.h"
#include "mpi.h"
#include "report.h"
#include "types.h"

namespace compcoll {
namespace layer {

// -- arguments

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

enum SideName { send_side, recv_side };

// One buffer of a call.
struct Side {
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

class Check;
class Staged;
struct Stream;

// A call as MPI has it.
struct Call {
  Name name;
  Form form;
  bool wide;  // whether counts and displacements have 64 bits
  const Word* words;  // all arguments of C
  int n_words;  // those of the form included: the address of a request is the last
  Comm& comm;
  Next& next;  // the function of C that carries the call out behind the layer
  const void* caller;  // an address in the program
  Word* request;  // where the layer's request goes
  int gpus[2] = {engine::NO_GPU, engine::NO_GPU};  // that what is sent, and received, lies on
  std::shared_ptr<engine::Marks> marks = nullptr;  // behind what the caller has started there
  std::shared_ptr<Staged> staged = nullptr;  // of a call on copies of that
  std::shared_ptr<Check> check = nullptr;  // of a nonblocking one, whose comparison ends with it

  const Operation& op() const { return operations[name]; }
  int root() const { return op().root < 0 ? 0 : int32_t(words[op().root]); }
  bool on_devices() const { return gpus[send_side] != engine::NO_GPU || gpus[recv_side] != engine::NO_GPU; }
  // Whether MPI gets copies on the host of what the call has on GPUs.
  bool on_copies() const { return on_devices() && !comm.settings.devices; }
  int64_t count_at(int i) const { return wide ? int64_t(words[i]) : int32_t(words[i]); }
  int64_t listed(const void* values, int i) const {
    return wide ? static_cast<const int64_t*>(values)[i] : static_cast<const int32_t*>(values)[i];
  }
};

// Bytes of the largest message where one count tells that: the receive count where it is significant on all
// ranks, else that of the side which is not in place.
COMPCOLL_INLINE uint64_t nbytes_of_one_count(const Operation& op, const Word* words, bool wide, int size) {
  const Word in_place = library().in_place;
  bool by_recv = op.root < 0 || op.reduction >= 0 || op.one_buffer();
  if (!by_recv) by_recv = op.send_many ? words[op.recv.buf] != in_place : words[op.send.buf] == in_place;
  const Positions& side = by_recv ? op.recv : op.send;
  const int64_t n = wide ? int64_t(words[side.count]) : int32_t(words[side.count]);
  uint64_t nbytes = n > 0 ? uint64_t(n) * nbytes_of(words[side.type]) : 0;
  return op.reduction < 0 || op.send_many || nbytes <= uint64_t(size) ? nbytes : nbytes / uint64_t(size);
}

// Bytes of the largest message of this rank, as all that take part in it know it.
uint64_t message_nbytes(const Call& call);

// A call that is small, of an operation with one count: MPI's, and that is all.
COMPCOLL_INLINE bool is_small(Name name, const Word* words, bool wide, Comm& comm) {
  const Operation& op = operations[name];
  if (op.reduction >= 0 && !predefined_at(library().handle_of(words[op.recv.type])).handle) return false;
  if (nbytes_of_one_count(op, words, wide, comm.size) >= comm.limit.load(std::memory_order_relaxed))
    return false;
  if (reentrant) return true;
  comm.count(name);
  comm.last.note_small(name);
  return true;
}

// -- what was decided

// A block of the caller's memory: a message between two ranks.
struct Block {
  SideName side = send_side;
  int64_t entries = 0, displ = 0;  // the latter in bytes
  const Type* type = nullptr;
  uint64_t nbytes() const { return type ? uint64_t(entries) * type->nbytes : 0; }
};

// The same as the engine takes it.
struct Room {
  SideName side = send_side;
  bool any = false;  // whether there is memory at all
  bool copied = false;  // whether a copy is sent, as what is received takes the place of what is sent
  int64_t offset = 0;
  uint64_t nbytes = 0;
  engine::LayoutRef layout;  // null where the bytes lie side by side
};

// A schedule of a call.
struct Part {
  std::shared_ptr<const engine::Schedule> schedule;
  engine::Coding coding, inside;
  std::shared_ptr<const engine::Neighbours> neighbours;
  std::shared_ptr<const Way> way;
  bool differs = false;  // whether its codec sends what changed since the last start
  bool direct = false;  // whether MPI takes frames on GPUs
  std::vector<Room> rooms;
  KeptRef kept;  // Python's side of it
};

// The dimensions of a block whose datatype has any, in elements.
std::vector<uint64_t> shape_of(const Block& block);

// What was decided on calls with the same arguments.
struct Entry {
  std::shared_ptr<const Way> declined;  // why MPI carries the call out; null where the engine does
  bool refused = false;  // which `strict` makes an error
  std::shared_ptr<Count> count;  // null where the decision is for good
  std::vector<Part> parts;
  std::vector<uint8_t> out,
      into;  // of a call that pairs decide: whether the engine has the message with each rank
  std::shared_ptr<const Stream> stream;  // of a message in place of all that
};

// What Python is told of a call that was not seen before, and what it says.
struct Description {
  // A block that is sent or received, in the order of the schedule's buffers.
  struct Message {
    uint64_t n;  // real numbers, or integers
    uint32_t element;  // 0 where there are several basic types, or none that frames hold
    std::vector<uint64_t> shape;  // in elements; empty where there is none
    uint64_t data;  // an address; 0 where they do not lie side by side
    int gpu;  // that it lies on
  };
  Description(const Call& call, uint64_t nbytes) : call(call), nbytes(nbytes) {}

  const Call& call;
  const uint64_t nbytes;
  const double began = engine::now();
  uint32_t element = 0;  // of all blocks, in a call that all ranks decide
  bool in_place = false;  // of a call that pairs decide: what is received takes the place of what is sent
  std::string comm_name;  // where the policy looks at it
  int phase = 0;  // which of the communicator's policies is in force
  std::vector<Message> send, recv;
  std::vector<Block> sent, received;

  std::shared_ptr<Entry> entry = std::make_shared<Entry>();
  bool idle = false;  // whether no call of the communicator is ever compressed
  int code = 0;  // MPI's, of an error that all ranks get

  // Adds a schedule of some of the blocks.
  void add(Part part, const std::vector<uint8_t>& some_sent, const std::vector<uint8_t>& some_received);
};

// -- carrying out

// Serves a call; false where MPI is to carry it out, as it came, which may happen behind. Else `error` is
// MPI's code.
bool serve(Call& call, int* error);

// Whether Bcasts of this thread have a buffer of the root's that may only be read: an error where values
// would be written to it.
void set_root_is_read_only(bool is_read_only);

// The number of the communicator's policy that calls of this thread come under.
void set_phase(int phase);

// Has MPI carry out a call, or its part of one; its code. An operation that it lacks is one of ours.
int plain(const Call& call, const Word* words);
// The operation that adds up values of a type which MPI has no sum for; 0 in all other calls.
Word own_sum(const Call& call);

// The process's engine, and the functions of MPI that it calls.
engine::Engine& the_engine();
const engine::Library& engine_library();
// Starts the threads that nonblocking calls need; false if one of them cannot be started.
bool start_threads();
void start_engine(bool threaded, double stall_seconds, engine::ThreadMain main);
// What is said of tasks that made no progress for so long.
std::string late_text();

// Ends the engine, before MPI does.
void stop_engine();

}  // namespace layer
}  // namespace compcoll
