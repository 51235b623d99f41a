#include "start.h"

#include "check.h"
#include "collective_operation.h"
#include "devices.h"
#include "entry.h"
#include "persistent.h"
#include "plan.h"
#include "recorder.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction error_class("PMPI_Error_class");

using DecisionRef = std::shared_ptr<const Decision>;

thread_local bool root_is_read_only = false;

// -- by MPI

void note(const CollectiveCall& call, const CallPlan& plan) {
  if (plan.declined) call.comm.add_plain(call.name, plan.declined);
  else if (call.name < n_accelerated) call.comm.last.note_small(call.name);
}

// Leaves a nonblocking call to MPI. The program's request includes the comparison and the host copies; MPI's
// code.
int submit_to_mpi(CollectiveCall& call) {
  auto operation =
      std::make_shared<CollectiveOperation>(call.comm.shared_from_this(), nullptr, call.name, call.form);
  std::vector<Word> words(call.words, call.words + call.n_words);
  words.back() = reinterpret_cast<Word>(&operation->plain);
  operation->check = call.check;
  operation->host_copies = call.host_copies;
  operation->plains.push_back(&operation->plain);
  if (int error = call_mpi(call, words.data())) return error;
  return operation->submit(&call.request);
}

// Lets MPI carry out a call, on host copies of GPU memory that it cannot access; its code. Reserves tags as
// ranks do that do not leave the call to MPI. If MPI refuses the arguments, those ranks reserve none either.
int execute_by_mpi(CollectiveCall& call, const CallPlan& plan) {
  note(call, plan);
  if (!call.next.exists() && !call.on_devices() && !call.host_copies) return unavailable;
  const double start = plan.trial ? engine::now() : 0;
  if (call.on_copies()) {
    call.use_host_copies(false);
  } else if (call.on_devices()) {  // MPI does not know the caller's streams
    HostCopies all(call);
    all.copy_to_host(call.marks);
    if (all.code()) return failed(call, all.code());
  }
  int error;
  if (call.host_copies && call.form == persistent) error = init_collective(call, nullptr, 0);
  else if (call.form == nonblocking && (call.check || call.host_copies)) error = submit_to_mpi(call);
  else error = call_mpi(call, call.words);
  if (error) return error;
  if (call.host_copies && call.form == blocking) {
    call.host_copies->copy_to_device();
    error = failed(call, call.host_copies->code());
  }
  if (plan.trial) plan.trial->add(engine::now() - start);
  if (takes_tags(call)) {
    std::shared_ptr<PersistentTags::TagRange> unused;
    if (call.form == nonblocking) call.comm.tags.reserve(nullptr);
    else error = call.comm.persistent_tags.reserve(call.comm.handle, &unused);
  }
  return error;
}

// Returns an error in place of a call that MPI would carry out. Nothing has begun: a valid call in its place
// matches those of the other ranks.
int refuse(const CollectiveCall& call, const CallPlan& plan) {
  const std::string text = std::string(call.op.name) + " would be left to MPI: " + plan.declined->reason;
  return failed(call, code_of(FALLBACK, text));
}

// -- by the engine

// True if MPI has exchanged messages before an error, rather than refused the arguments.
bool has_begun(int code) {
  int found = code;
  error_class.call(code, &found);
  return found == library().in_status || found == library().err_truncate || found == library().err_other;
}

// Lets MPI carry out its part of a call; its code.
int begin_part_of_mpi(const CollectiveCall& call, CollectiveOperation* operation) {
  const CallPlan& plan = *operation->plan;
  const Word* given = call.words;
  if (call.on_copies()) {
    operation->host_copies = std::make_shared<HostCopies>(call, plan.sent, plan.received);
    operation->host_copies->copy_to_host(call.marks);
    given = operation->host_copies->words();
  }
  operation->remaining = std::make_shared<RemainingCall>(call, given, plan.sent, plan.received);
  Word* words = operation->remaining->words();
  if (call.form == nonblocking) {
    words[call.n_words - 1] = reinterpret_cast<Word>(&operation->plain);
    operation->plains.push_back(&operation->plain);
  }
  const int error = call_mpi(call, words);
  if (error && has_begun(error)) {
    call.comm.fail("MPI's part of " + std::string(call.op.name) + " has ended with an error");
    call.comm.refuse();
  }
  return error;
}

int begin_and_end(CollectiveCall& call, int poisoned, const std::shared_ptr<CollectiveOperation>& operation) {
  Comm& comm = call.comm;
  const bool parts = operation->plan->execution == Execution::both;
  operation->host_copies = call.host_copies;
  if (parts)
    if (int error = begin_part_of_mpi(call, operation.get())) return error;
  const bool alone = parts && call.form == blocking;
  const int first =
      alone ? comm.tags.pairwise() : comm.tags.reserve(call.form == blocking ? nullptr : operation);
  const Word bases[] = {call.buffers[send_side].buf, call.buffers[recv_side].buf};
  const CollectiveOperation::FrameChannel channel = {comm.frames->handle(), first, comm.tags.n(),
                                                     comm.tags.refusal(), 0};
  if (int error = operation->begin(bases, call.gpus, channel, call.marks)) return failed(call, error);
  if (poisoned) operation->poison(poisoned);
  return failed(call, call.form == blocking ? operation->wait() : operation->submit(&call.request));
}

// `uncompressed`: why the call is not compressed, if it is not.
int execute_by_engine(CollectiveCall& call, const PlanRef& plan, DecisionRef uncompressed = nullptr) {
  int poisoned = 0;
  if (root_is_read_only && plan->schedules.back().decision->writes_back) {
    poisoned = code_of(library().err_buffer,
                       "the root's buffer is read-only, but a lossy codec writes the decoded values to it: "
                       "give writable memory, or owner_exact=True");
  }
  if (call.form == persistent) return failed(call, init_collective(call, plan, poisoned));
  auto operation =
      std::make_shared<CollectiveOperation>(call.comm.shared_from_this(), plan, call.name, call.form);
  operation->began = engine::now();
  operation->check = call.check;
  operation->uncompressed = std::move(uncompressed);
  return operation->beginning([&] { return begin_and_end(call, poisoned, operation); });
}

// Lets the engine carry an uncompressed call that its plan leaves to MPI; MPI's code.
int carry_uncompressed(CollectiveCall& call, const PlanRef& carried, const CallPlan& left) {
  DecisionRef why = carried->schedules[0].decision;
  if (left.declined) why = decision_by_mpi(left.declined->reason + "; " + why->reason);
  const double start = engine::now();
  const int error = execute_by_engine(call, carried, std::move(why));
  if (left.trial && !error) left.trial->add(engine::now() - start);
  return error;
}

// Compares a call with those of the other ranks, while a nonblocking one proceeds; MPI's code.
int compare(CollectiveCall& call) {
  std::shared_ptr<Check> made;
  int error = check(call, &made);
  if (!error && call.form != nonblocking) error = made->wait();
  if (call.form == nonblocking) call.check = made;
  return failed(call, error);
}

int carry_out(CollectiveCall& call) {
  Comm& comm = call.comm;
  if (call.form != persistent) comm.count(call.name);
  if (comm.broken()) return failed(call, code_of(BROKEN, comm.why_broken()));
  int error = 0;
  if (checks && comm.size > 1 && (error = compare(call))) return error;
  if ((error = failed(call, find_devices(call)))) return error;
  const PlanRef plan = plan_of(call, &error);
  if (error) return error;
  if (plan->execution == Execution::refused) return refuse(call, *plan);
  if (plan->execution != Execution::mpi) return execute_by_engine(call, plan);
  const PlanRef carried = uncompressed_plan_of(call, &error);
  if (error) return error;
  return carried ? carry_uncompressed(call, carried, *plan) : execute_by_mpi(call, *plan);
}

}  // namespace

int call_mpi(const CollectiveCall& call, const Word* words) {
  const Word sum = call.own_sum();
  if (!sum) return call.next.call(words, call.n_words);
  std::vector<Word> own(words, words + call.n_words);
  own[size_t(call.op.reduction)] = sum;
  return call.next.call(own.data(), call.n_words);
}

int enter_collective(const Invocation& from, uint64_t message_nbytes) {
  return guarded(from.comm, [&] {
    CollectiveCall call(from, message_nbytes);
    void* const place = reinterpret_cast<void*>(from.words[from.n_words - 1]);  // of the request, if any
    const bool records = from.form != persistent && is_recorded();
    Record record;
    if (records) record = begin_record(call);
    const int error = carry_out(call);
    if (!error && call.request) library().put_handle(call.request, place);
    if (records)
      end_record(call, std::move(record), error, from.form == blocking ? 0 : library().handle_at(place));
    return error;
  });
}

void set_root_is_read_only(bool is_read_only) { root_is_read_only = is_read_only; }

}  // namespace layer
}  // namespace compcoll
