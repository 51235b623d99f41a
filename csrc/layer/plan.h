// Plans: the decision on all calls of a communicator with the same arguments, taken once.
//
// A call's plan is looked up by this rank's arguments. After a miss, Python decides which schedules the
// engine runs on which blocks of the caller's memory, and which part of the call is left to MPI.
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

// Why MPI carries messages, nonblocking and persistent calls of a communicator without threads.
constexpr char missing_threads[] = "MPI.THREAD_MULTIPLE, or a thread, is missing on some ranks";

class MessageChunks;

// A schedule that the engine runs for a call.
struct PlannedSchedule {
  std::shared_ptr<const engine::Schedule> schedule;
  engine::Coding coding, inside;
  std::shared_ptr<const engine::Neighbours> neighbours;
  std::shared_ptr<const Decision> decision;
  bool differs = false;  // true if the codec sends what changed since the last start
  bool direct = false;  // true if MPI takes frames on GPUs
  std::vector<BlockMemory> blocks;
  PythonRef python_ref;  // Python's side of the schedule
};

// Executor of a call.
enum class Execution {
  mpi,
  refused,  // nobody: the call would be left to MPI, which is an error under `strict`
  engine,
  both,  // the engine carries some messages, as their pairs of ranks decide, and MPI the others
};

struct CallPlan {
  Execution execution = Execution::mpi;
  std::string text;  // a collective in words
  std::shared_ptr<const Decision> declined;  // why MPI carries out the call; null for small calls
  std::shared_ptr<TrialWindow> trial;  // null if the decision is final
  std::vector<PlannedSchedule> schedules;
  std::vector<uint8_t> sent, received;  // for `both`: true for ranks whose messages the engine carries
  std::shared_ptr<const MessageChunks> chunks;  // of a point-to-point message, which has no schedules
};
using PlanRef = std::shared_ptr<const CallPlan>;

// The plan of a call; null after an error, with MPI's code. Blocks on GPUs that kernels cannot access are
// copied to the host first.
PlanRef plan_of(CollectiveCall& call, int* error);

// The plan by which the engine carries an uncompressed call whose memory is all on GPUs; null if MPI carries
// it out, or after an error, with MPI's code. Ranks that do not know of each other's memory agree on it
// first, which is collective: all ranks get here, as all their plans leave the call to MPI.
PlanRef uncompressed_plan_of(CollectiveCall& call, int* error);

// True if all ranks reserve tags for a call that pairs of ranks decide, even if this rank leaves it to MPI.
bool takes_tags(const CollectiveCall& call);

// Passes an error code to the communicator's error handler.
inline int failed(const CollectiveCall& call, int code) { return code ? raise(call.comm.handle, code) : 0; }

// Sets the number of the communicator's policy that applies to calls of this thread.
void set_phase(int phase);

// Describes a new call or message to Python, and receives Python's decision.
struct Description {
  // A block that is sent or received, in the order of the schedule's buffers.
  struct Message {
    uint64_t n;  // real numbers, or integers
    uint32_t element;  // 0 if there are several basic types, or one that frames cannot hold
    std::vector<uint64_t> shape;  // in elements; empty if there is none
    uint64_t data;  // address; 0 if the elements are not contiguous
    int gpu;  // that holds the elements
  };
  Description(const CollectiveCall& call, std::string comm_name);
  explicit Description(const CollectiveCall& call);  // of an uncompressed call, whose elements are bytes
  Description(Comm& comm, Name name, int dest, Message message, std::string comm_name);

  const CollectiveCall* const call;  // null for a message
  Comm& comm;
  const Name name;
  const Form form;
  const int root;  // or the destination of a message
  const uint64_t nbytes;  // of the largest message
  const double began = engine::now();
  const uint32_t element;  // of all blocks; 0 in calls that pairs of ranks decide
  const bool is_uncompressed = false;  // true if the only decision is how bytes travel
  const std::string comm_name;  // empty if the policy does not look at it
  const int phase;  // number of the communicator's policy in force
  std::vector<Message> send, recv;
  std::vector<Block> sent, received;

  const std::shared_ptr<CallPlan> plan = std::make_shared<CallPlan>();
  bool idle = false;  // true if no call of the communicator is ever compressed
  int code = 0;  // MPI's, for an error that all ranks get

  // Leaves the call to MPI.
  void decline(std::shared_ptr<const Decision> why, bool strict_refuses);
  // Sends a message in chunks of `step` elements; `plane` and `row` as in ChunkLayout.
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
