#include "plan.h"

#include <algorithm>
#include <new>

#include "check.h"
#include "devices.h"
#include "message_chunks.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction allreduce("PMPI_Allreduce");

thread_local int phase = 0;

// The longest text of a call, which may list a count for each rank.
constexpr size_t most_characters = 100;

CallPlan left_to_mpi(const Comm& comm, std::shared_ptr<const Decision> why, bool strict_refuses) {
  CallPlan plan;
  if (strict_refuses && comm.settings.strict) plan.execution = Execution::refused;
  plan.declined = std::move(why);
  return plan;
}

PlanRef left_to_mpi(const CollectiveCall& call, const char* reason, bool strict_refuses) {
  return std::make_shared<CallPlan>(left_to_mpi(call.comm, decision_by_mpi(reason), strict_refuses));
}

// Reason why all ranks leave a call to MPI, whatever their sizes, and whether `strict` refuses that; null if
// there is none.
const char* common_reason(const CollectiveCall& call, bool* strict_refuses) {
  const Operation& op = call.op;
  const Library& mpi = library();
  *strict_refuses = true;
  if (op.reduction >= 0 && mpi.handle_of(call.words[op.reduction]) != mpi.sum)
    return "only MPI.SUM is accelerated";
  if (call.form == blocking) return nullptr;
  *strict_refuses = false;
  if (!call.comm.settings.threads) return missing_threads;
  if (call.comm.settings.names) return "rules by a communicator's name apply to blocking calls only";
  *strict_refuses = true;
  // In Open MPI, a rank whose counts are all zero skips the call. Its later calls then match earlier ones of
  // the other ranks.
  const bool loses_count = op.pairs && op.root < 0 && mpi.abi == Abi::open_mpi;
  if (loses_count && call.words[op.send.buf] == mpi.in_place)
    return "Open MPI mixes up such calls in place where a rank is left with nothing to exchange";
  return nullptr;
}

// Gets a communicator's name, which has to be the same on all ranks if rules look at it; collective. MPI's
// code.
int agree_on_name(Comm& comm, std::string* name) {
  *name = name_of(comm.handle);
  uint64_t hash = 14695981039346656037u;
  for (char letter : *name) hash = (hash ^ uint8_t(letter)) * 1099511628211u;
  uint64_t extremes[] = {hash, ~hash};
  const Library& mpi = library();
  if (int error = allreduce.call(mpi.in_place, extremes, 2, mpi.uint64, mpi.max, comm.handle)) return error;
  if (extremes[0] == ~extremes[1]) return 0;
  return raise(comm.handle, code_of(POLICY, "the ranks name this communicator differently, and this one '" +
                                                *name + "'; rules look at its name"));
}

// The blocks that a call sends, and those that it receives.
std::vector<Block> blocks_of(const CollectiveCall& call) {
  std::vector<Block> sent, received;
  call.blocks(&sent, &received);
  sent.insert(sent.end(), received.begin(), received.end());
  return sent;
}

// True if kernels can access the blocks of a call in place.
bool fits_devices(const CollectiveCall& call) {
  if (call.buffers[send_side].in_place && call.op.send_many && call.op.recv_many) return false;
  const std::vector<Block> blocks = blocks_of(call);
  return std::none_of(blocks.begin(), blocks.end(), [](const Block& one) { return memory_of(one).layout; });
}

// True if all blocks of a call are runs of bytes on GPUs.
bool lies_on_devices(const CollectiveCall& call) {
  if (!call.valid || call.is_aliased() || call.differs() || !fits_devices(call)) return false;
  const std::vector<Block> blocks = blocks_of(call);
  return std::all_of(blocks.begin(), blocks.end(), [&call](const Block& one) {
    return !one.nbytes() || (one.type->known && call.gpus[one.side] != engine::NO_GPU);
  });
}

// Error code for arguments that MPI might not refuse; 0 if they are valid.
int problem_of(const CollectiveCall& call) {
  const Library& mpi = library();
  if (call.is_aliased())
    return code_of(mpi.err_buffer, "send and receive buffer are the same memory: give MPI.IN_PLACE");
  if (!call.differs()) return 0;
  Block sent, received;
  call.own(&sent, &received);
  return code_of(mpi.err_count, "this rank sends " + std::to_string(sent.nbytes()) +
                                    " bytes to itself and expects " + std::to_string(received.nbytes()) +
                                    ": counts or types of its two buffers differ");
}

// Asks Python for a plan; null after an error, with MPI's code, or if there is no interpreter any more.
PlanRef prepare(const CollectiveCall& call, const std::string& name, int* error) {
  Description about(call, name);
  if (!ask_python([&about](const Python& python) { python.prepare(&about); })) return nullptr;
  if (about.idle) call.comm.note_idle();
  if (about.code == library().err_no_mem) throw std::bad_alloc();  // on this rank alone
  if ((*error = failed(call, about.code))) return nullptr;
  return about.plan;
}

// True if the engine may carry the call uncompressed, by what all ranks know.
bool may_be_carried(const CollectiveCall& call) {
  const Operation& op = call.op;
  const Comm& comm = call.comm;
  if (call.name >= n_accelerated || comm.size == 1 || op.pairs || op.reduction >= 0) return false;
  if (call.form == persistent || (call.form == nonblocking && !comm.settings.alike)) return false;
  if (op.root >= 0 && (call.root() < 0 || call.root() >= comm.size)) return false;
  const uint64_t n = op.send_many || op.recv_many ? uint64_t(comm.size) : 1;
  return call.message_nbytes && call.message_nbytes >= comm.settings.plain_nbytes / n;
}

// Asks Python how a call's bytes travel; null after an error, with MPI's code, or without an interpreter.
PlanRef prepare_uncompressed(const CollectiveCall& call, int* code) {
  std::vector<int64_t> key = call.key();
  key[0] |= 1 << 24;
  if (PlanRef plan = call.comm.find_plan(key)) return plan;
  Description about(call);
  if (!ask_python([&about](const Python& python) { python.prepare(&about); })) return nullptr;
  if ((*code = about.code)) return nullptr;
  call.comm.store_plan(std::move(key), about.plan);
  return about.plan;
}

// Agrees on such a plan, which is used only if all ranks have one; collective. A rank tells the others if it
// has none.
PlanRef agreed_plan_of(const CollectiveCall& call, int* error) {
  PlanRef plan;
  int code = 0;
  try {
    if (lies_on_devices(call)) plan = prepare_uncompressed(call, &code);
  } catch (const std::bad_alloc&) {}
  uint64_t lacks = !plan;
  const Library& mpi = library();
  *error = allreduce.call(mpi.in_place, &lacks, 1, mpi.uint64, mpi.max, call.comm.handle);
  return *error || lacks ? nullptr : plan;
}

}  // namespace

PlanRef uncompressed_plan_of(CollectiveCall& call, int* error) {
  if (!may_be_carried(call)) return nullptr;
  if (!call.comm.settings.alike) return agreed_plan_of(call, error);
  if (!call.on_devices() && !call.host_copies) return nullptr;
  if ((*error = failed(call, problem_of(call)))) return nullptr;
  if (call.on_devices() && !fits_devices(call)) call.use_host_copies(true);
  PlanRef plan = prepare_uncompressed(call, error);
  *error = failed(call, *error);
  return plan;
}

PlanRef plan_of(CollectiveCall& call, int* error) {
  static const PlanRef small = std::make_shared<CallPlan>();
  Comm& comm = call.comm;
  const Operation& op = call.op;
  if (call.name >= n_accelerated || comm.size == 1 || comm.settings.min_nbytes == never) return small;
  const bool is_large = call.message_nbytes && call.message_nbytes >= comm.settings.min_nbytes;
  if (!is_large && !concerns_all_ranks(op, call.form, comm)) return small;
  bool strict_refuses;
  if (const char* reason = common_reason(call, &strict_refuses))
    return left_to_mpi(call, reason, strict_refuses);
  if (op.root >= 0 && (call.root() < 0 || call.root() >= comm.size))
    return left_to_mpi(call, "its root is not a rank of the communicator", false);
  std::string name;
  if (comm.settings.names && (*error = agree_on_name(comm, &name))) return nullptr;
  if (!is_large || !call.valid || (!op.pairs && !call.decisive())) return small;
  if (call.on_devices() && !fits_devices(call)) call.use_host_copies(true);
  if ((*error = failed(call, problem_of(call)))) return nullptr;
  if (!op.pairs) {
    const Type& type = *call.decisive();
    if (!type.element || !type.known || (op.reduction >= 0 && !type.summable))
      return left_to_mpi(call, unknown_type, true);
  }
  std::vector<int64_t> key = call.key();
  key.insert(key.end(), name.begin(), name.end());
  if (phase) key.push_back(phase);
  PlanRef plan = comm.find_plan(key);
  if (plan && (!plan->trial || plan->trial->count_call())) return plan;
  plan = prepare(call, name, error);
  if (!plan) return *error ? nullptr : small;
  if (plan->trial) plan->trial->count_call();
  comm.store_plan(std::move(key), plan);
  return plan;
}

bool takes_tags(const CollectiveCall& call) {
  bool strict_refuses;
  return call.form != blocking && concerns_all_ranks(call.op, call.form, call.comm) &&
         !common_reason(call, &strict_refuses);
}

void set_phase(int number) { phase = number; }

Description::Description(const CollectiveCall& call, std::string comm_name)
    : Description(call, std::move(comm_name), call.op.pairs ? 0 : call.decisive()->element, false) {}

Description::Description(const CollectiveCall& call) : Description(call, "", UINT8, true) {}

Description::Description(const CollectiveCall& call, std::string comm_name, uint32_t element,
                         bool is_uncompressed)
    : call(&call),
      comm(call.comm),
      name(call.name),
      form(call.form),
      root(call.root()),
      nbytes(call.message_nbytes),
      element(element),
      is_uncompressed(is_uncompressed),
      comm_name(std::move(comm_name)),
      phase(layer::phase) {
  call.blocks(&sent, &received);
  plan->text = text_of(call, sent, received);
  if (plan->text.size() > most_characters) plan->text.replace(most_characters, std::string::npos, "...");
  describe(sent, &send);
  describe(received, &recv);
}

Description::Description(Comm& comm, Name name, int dest, Message message, std::string comm_name)
    : call(nullptr),
      comm(comm),
      name(name),
      form(blocking),
      root(dest),
      nbytes(message.n * itemsize(real_of(message.element))),
      element(message.element),
      comm_name(std::move(comm_name)),
      phase(0) {
  send.push_back(std::move(message));
}

void Description::describe(const std::vector<Block>& blocks, std::vector<Message>* messages) const {
  for (const Block& block : blocks) {
    Message one = {};
    one.element = element ? element : block.type && block.type->known ? block.type->element : 0;
    const uint32_t each = itemsize(real_of(one.element));
    one.n = each ? block.nbytes() / each : 0;
    one.shape = shape_of(block);
    const BlockMemory memory = memory_of(block);
    if (memory.any && !memory.layout) one.data = call->buffers[memory.side].buf + Word(memory.offset);
    one.gpu = memory.any ? call->gpus[memory.side] : engine::NO_GPU;
    messages->push_back(std::move(one));
  }
}

void Description::decline(std::shared_ptr<const Decision> why, bool strict_refuses) {
  *plan = left_to_mpi(comm, std::move(why), strict_refuses);
}

void Description::send_in_chunks(const engine::Coding& coding, PythonRef python_ref,
                                 std::shared_ptr<const Decision> decision, uint64_t step, uint64_t plane,
                                 uint64_t row) {
  const ChunkLayout layout(send[0].n, itemsize(coding.dtype), step, plane, row);
  const bool on_gpu = send[0].gpu != engine::NO_GPU;
  plan->chunks =
      std::make_shared<MessageChunks>(coding, std::move(python_ref), std::move(decision), layout, on_gpu);
  plan->execution = Execution::engine;
}

void Description::add(PlannedSchedule one, const std::vector<uint8_t>& some_sent,
                      const std::vector<uint8_t>& some_received) {
  auto take = [&](const std::vector<Block>& blocks, const std::vector<uint8_t>& some, bool copied) {
    for (size_t i = 0; i < blocks.size(); i++) {
      BlockMemory memory = some.empty() || some[i] ? memory_of(blocks[i]) : BlockMemory();
      memory.copied = copied;
      one.blocks.push_back(std::move(memory));
    }
  };
  const Operation& op = call->op;
  const bool replaces = op.send_many && op.recv_many && op.reduction < 0;
  take(sent, some_sent, replaces && call->buffers[send_side].in_place);
  take(received, some_received, false);
  plan->schedules.push_back(std::move(one));
  plan->execution = op.pairs ? Execution::both : Execution::engine;
}

}  // namespace layer
}  // namespace compcoll
