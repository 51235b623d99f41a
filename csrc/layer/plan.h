// Plans: what is decided, once, on all calls of a communicator with the same arguments.
//
// A call's plan is looked up by what this rank's arguments say. After a miss Python decides, and says which
// schedules the engine runs, on which blocks of the caller's memory, and what MPI has to do beside them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "trial_window.h"
#include "engine/clock.h"
#include "errors.h"

namespace compcoll {
namespace layer {

class MessageChunks;

// A schedule that the engine runs for a call.
struct PlannedSchedule {
  std::shared_ptr<const engine::Schedule> schedule;
  engine::Coding coding, inside;
  std::shared_ptr<const engine::Neighbours> neighbours;
  std::shared_ptr<const Decision> decision;
  bool differs = false;  // whether its codec sends what changed since the last start
  bool direct = false;  // whether MPI takes frames on GPUs
  std::vector<BlockMemory> blocks;
  PythonRef python_ref;  // Python's side of it
};

// Executor of a call.
enum class Execution {
  mpi,
  refused,  // nobody, as MPI would, which `strict` makes an error
  engine,
  both,  // the engine some messages, as their pairs of ranks decide, and MPI the others
};

struct CallPlan {
  Execution execution = Execution::mpi;
  std::shared_ptr<const Decision> declined;  // why MPI carries the call out; null of small calls
  std::shared_ptr<TrialWindow> trial;  // null where the decision is for good
  std::vector<PlannedSchedule> schedules;
  std::vector<uint8_t> sent, received;  // of `both`: whether the engine has the message with each rank
  std::shared_ptr<const MessageChunks> chunks;  // of a message in place of all that
};
using PlanRef = std::shared_ptr<const CallPlan>;

// The plan of a call; null where there is an error, with MPI's code. Blocks on GPUs that kernels do not reach
// are copied to the host first.
PlanRef plan_of(CollectiveCall& call, int* error);

// The plan by which the engine carries a call that is not compressed, of memory on GPUs alone; null where MPI
// carries it out, or there is an error, with MPI's code. Ranks that do not know of each other's memory agree on
// it first: all of them ask, as their plans leave the call to MPI.
PlanRef uncompressed_plan_of(CollectiveCall& call, int* error);

// True if all ranks take tags for a call of pairs, whatever becomes of it on this one.
bool takes_tags(const CollectiveCall& call);

// Has the communicator's error handler deal with a code, if it is one.
inline int failed(const CollectiveCall& call, int code) { return code ? raise(call.comm.handle, code) : 0; }

// The number of the communicator's policy that calls of this thread come under.
void set_phase(int phase);

// Description of a call or message that was not seen before, for Python, and Python's decision.
struct Description {
  // A block that is sent or received, in the order of the schedule's buffers.
  struct Message {
    uint64_t n;  // real numbers, or integers
    uint32_t element;  // 0 where there are several basic types, or none that frames hold
    std::vector<uint64_t> shape;  // in elements; empty where there is none
    uint64_t data;  // an address; 0 where they do not lie side by side
    int gpu;  // that it lies on
  };
  Description(const CollectiveCall& call, std::string comm_name);
  explicit Description(const CollectiveCall& call);  // of an uncompressed one, whose elements are bytes
  Description(Comm& comm, Name name, int dest, Message message, std::string comm_name);

  const CollectiveCall* const call;  // null of a message
  Comm& comm;
  const Name name;
  const Form form;
  const int root;  // or the rank that a message goes to
  const uint64_t nbytes;  // of the largest message
  const double began = engine::now();
  const uint32_t element;  // of all blocks, in a call that all ranks decide; else 0
  const bool is_uncompressed = false;  // whether all that is to be decided is how bytes travel
  const std::string comm_name;  // where the policy looks at it
  const int phase;  // which of the communicator's policies is in force
  std::vector<Message> send, recv;
  std::vector<Block> sent, received;

  const std::shared_ptr<CallPlan> plan = std::make_shared<CallPlan>();
  bool idle = false;  // whether no call of the communicator is ever compressed
  int code = 0;  // MPI's, of an error that all ranks get

  // Leaves the call to MPI.
  void decline(std::shared_ptr<const Decision> why, bool strict_refuses);
  // Has a message sent in chunks of `step` elements; `plane` and `row` as in ChunkLayout.
  void send_in_chunks(const engine::Coding& coding, PythonRef python_ref,
                      std::shared_ptr<const Decision> decision, uint64_t step, uint64_t plane, uint64_t row);
  // Adds a schedule of some of the blocks.
  void add(PlannedSchedule one, const std::vector<uint8_t>& some_sent,
           const std::vector<uint8_t>& some_received);

 private:
  Description(const CollectiveCall& call, std::string comm_name, uint32_t element, bool is_uncompressed);
  void describe(const std::vector<Block>& blocks, std::vector<Message>* messages) const;
};

}  // namespace layer
}  // namespace compcoll
