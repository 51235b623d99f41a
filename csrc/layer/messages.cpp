#include "messages.h"

#include <algorithm>
#include <string>

#include "errors.h"
#include "plan.h"
#include "requests.h"

namespace compcoll {
namespace layer {

namespace {

MpiFunction type_dup("PMPI_Type_dup"), type_free("PMPI_Type_free");

bool is_replace(Name name) { return name == Sendrecv_replace || name == Isendrecv_replace; }
bool is_buffered(Name name) {
  return name == Bsend || name == Ibsend || name == Bsend_init || name == Rsend || name == Irsend ||
         name == Rsend_init;
}

// True if the ranks, tags and counts that a message uses are valid.
bool is_sound(const MessageArguments& m) {
  const Library& mpi = library();
  auto rank = [&](int one, bool any) {
    return (one >= 0 && one < m.comm->size) || one == mpi.proc_null || (any && one == mpi.any_source);
  };
  auto tag = [&](int one, bool any) {
    return (one >= 0 && one <= mpi.largest_tag) || (any && one == mpi.any_tag);
  };
  return (!m.sends || (rank(m.dest, false) && tag(m.sendtag, false) && m.sendcount >= 0)) &&
         (!m.receives || (rank(m.source, true) && tag(m.recvtag, true) && m.recvcount >= 0));
}

// Receives into smaller buffers go to MPI: a first message has at least so many bytes.
uint64_t least_room(const Comm& comm) { return std::min(comm.settings.min_nbytes, least_first); }

// Notes why MPI sends a message, or fails under `strict`.
void decline(const MessageArguments& m, const char* reason, int* error) {
  if (!m.comm->settings.strict) return m.comm->add_plain(m.row().op, decision_by_mpi(reason));
  *error =
      failed(m, code_of(FALLBACK, std::string(text_of(m.row().op)) + " would be left to MPI: " + reason));
}

// Notes that MPI carries a message, because it is small or, if it is not, because threads are missing.
void note_plain(const MessageArguments& m, bool is_large) {
  Comm& comm = *m.comm;
  const Name op = m.row().op;
  if (is_large && !comm.settings.threads && comm.settings.min_nbytes != never && comm.size > 1)
    comm.add_plain(op, decision_by_mpi(missing_threads));
  else comm.last.note_small(op);
}

// Why MPI sends a message whatever its size and type; null if the layer may send it.
const char* common_reason(const MessageArguments& m) {
  if (m.dest == m.comm->rank) return "messages to the sending rank go to MPI";
  if (is_buffered(m.name)) return "Bsend and Rsend go to MPI";
  return nullptr;
}

// How a message is sent; null if MPI sends it, or after an error.
std::shared_ptr<const MessageChunks> chunks_of(const MessageArguments& m, const MessageBuffer& buffer,
                                               int* error) {
  Comm& comm = *m.comm;
  const Name op = m.row().op;
  if (!comm.compresses()) return nullptr;
  if (m.dest == library().proc_null || !buffer.nbytes || buffer.nbytes < comm.settings.min_nbytes)
    return comm.last.note_small(op), nullptr;
  if (const char* reason = common_reason(m)) return comm.add_plain(op, decision_by_mpi(reason)), nullptr;
  if (!buffer.element || !buffer.known) return decline(m, unknown_type, error), nullptr;
  if (itemsize(buffer.element) == 1)  // mostly pickles
    return comm.add_plain(op, decision_by_mpi("messages of single bytes go to MPI")), nullptr;
  // The GPU that encodes the message in place.
  const int gpu = buffer.on_gpu.gpu && !is_replace(m.name) ? buffer.gpu : engine::NO_GPU;
  std::vector<int64_t> key = {op, int64_t(buffer.type().id), int64_t(buffer.nbytes), m.dest, gpu};
  const std::string name = comm.settings.names ? name_of(comm.handle) : "";
  for (char letter : name) key.push_back(letter);
  PlanRef plan = comm.find_plan(key);
  if (!plan) {
    const uint64_t each = itemsize(real_of(buffer.element));
    Description about(comm, op, m.dest, {buffer.nbytes / each, buffer.element, buffer.shape, 0, gpu}, name);
    if (!ask_python([&about](const Python& python) { python.prepare(&about); })) return nullptr;
    if ((*error = failed(m, about.code))) return nullptr;
    comm.store_plan(std::move(key), plan = about.plan);
  }
  if (!plan->chunks) comm.add_plain(op, plan->declined);
  return plan->chunks;
}

// The part of a call that the layer carries out.
struct MessagePlan {
  MessageBufferRef sent, received;
  std::shared_ptr<const MessageChunks> chunks;
  bool ours = false, devices = false;
};

MessagePlan plan_of(const MessageArguments& m, int* error) {
  MessagePlan plan;
  const Library& mpi = library();
  const bool takes_devices = m.comm->settings.devices;
  const bool arrives = m.receives && m.source != mpi.proc_null;
  const bool may_come = arrives && m.comm->compresses() && m.room() >= least_room(*m.comm);
  if (m.sends) {
    plan.sent = std::make_shared<MessageBuffer>(m.sendbuf, m.sendcount, m.sendtype, true);
    if (!plan.sent->sound() || (*error = failed(m, plan.sent->refused()))) return plan;
    plan.chunks = chunks_of(m, *plan.sent, error);
    if (*error) return plan;
    // Chunks are encoded in place.
    if (plan.chunks ? !plan.sent->is_run() : !takes_devices) plan.sent->use_host_copy();
  }
  if (m.receives) {
    plan.received = std::make_shared<MessageBuffer>(m.recvbuf, m.recvcount, m.recvtype, false);
    if (!plan.received->sound() || (*error = failed(m, plan.received->refused()))) return plan;
    const bool direct = may_come ? plan.received->is_run() && !m.comm->gets_plain : takes_devices;
    if (!direct) plan.received->use_host_copy();
  }
  for (const MessageBufferRef& one : {plan.sent, plan.received})
    if (one && one->on_device() && m.comm->compresses()) m.comm->load_kernels(one->gpu, one->element);
  plan.devices = (plan.sent && plan.sent->on_device()) || (plan.received && plan.received->on_device());
  plan.ours = plan.chunks || may_come || !m.exists || (plan.devices && !takes_devices) ||
              (arrives && n_in_place && is_guarded(plan.received->range(MessageBuffer::all)));
  if (plan.ours && m.sends && is_replace(m.name) && m.source != mpi.proc_null && m.dest != mpi.proc_null) {
    plan.sent->use_host_copy();
    if (int code = plan.sent->copy_to_host()) {
      *error = failed(m, code);
      return plan;
    }
    plan.sent = std::make_shared<MessageBuffer>(plan.sent->packed(), *plan.sent);
  }
  return plan;
}

// Starts a plan; MPI's code.
int begin(const MessageArguments& m, const MessagePlan& plan, std::shared_ptr<MessageOperation>* made) {
  auto operation = std::make_shared<MessageOperation>(m.comm->shared_from_this(), m.name, m.row().form);
  if (m.receives)
    if (int error = operation->begin_receive(plan.received, m.source, m.recvtag)) return error;
  const auto send = [&] {
    // The message is sent even if a GPU has failed: another rank waits for it.
    if (!plan.chunks || !plan.sent->is_on_gpu()) operation->fail(plan.sent->copy_to_host());
    return operation->begin_send(plan.sent, plan.chunks, m.dest, m.sendtag, m.name);
  };
  if (m.sends) {
    if (int error = operation->beginning(send)) {
      operation->give_up();
      return error;
    }
  }
  *made = std::move(operation);
  return 0;
}

// A persistent message.
class PersistentMessage : public PersistentOperation {
 public:
  explicit PersistentMessage(const MessageArguments& message)
      : message_(message), comm_(message.comm->shared_from_this()) {
    for (Word* type : {&message_.sendtype, &message_.recvtype}) {
      Word made = 0;
      if (!*type || predefined_at(*type).handle || type_dup.call(*type, &made)) continue;
      *type = library().handle_of(made);
      types_.push_back(made);
    }
  }
  ~PersistentMessage() override {
    for (Word type : types_) type_free.call(&type);
  }
  int start(Word* request) override {
    if (comm_->broken()) return raise(comm_->handle, code_of(BROKEN, comm_->why_broken()));
    comm_->count(message_.row().op);
    int error = 0;
    std::shared_ptr<MessageOperation> operation;
    const MessagePlan plan = plan_of(message_, &error);
    if (!error) error = begin(message_, plan, &operation);
    if (error) return error;
    return failed(message_, operation->submit(request));
  }

 private:
  MessageArguments message_;
  const std::shared_ptr<Comm> comm_;
  std::vector<Word> types_;
};

}  // namespace

MessageArguments message_of(Name name, bool large_count, const Word* words) {
  const Library& mpi = library();
  MessageArguments message = {};
  message.name = name;
  const char* kinds = message.row().kinds;
  for (int i = 0; kinds[i]; i++) {
    Word word = words[i];
    void* place = reinterpret_cast<void*>(word);
    const int number = int32_t(word);
    const int64_t count = large_count ? int64_t(word) : number;
    switch (kinds[i]) {
      case 'b': message.sendbuf = word; break;
      case 'n': message.sendcount = count; break;
      case 't': message.sendtype = mpi.handle_of(word); break;
      case 'd': message.dest = number, message.sends = true; break;
      case 'g': message.sendtag = number; break;
      case 'B': message.recvbuf = word, message.receives = true; break;
      case 'N': message.recvcount = count; break;
      case 'T': message.recvtype = mpi.handle_of(word); break;
      case 'S': message.source = number; break;
      case 'G': message.recvtag = number; break;
      case 'c': message.comm = look_up(word); break;
      case 's': message.status = word == mpi.ignored_status ? nullptr : place; break;
      case 'q': message.request = place; break;
      case 'f': message.flag = place; break;
      case 'm': message.message = place; break;
    }
  }
  if (is_replace(name))
    message.sendbuf = message.recvbuf, message.sendcount = message.recvcount,
    message.sendtype = message.recvtype;
  return message;
}

bool serve_message(const MessageArguments& m, Word* request, int* error) {
  Comm& comm = *m.comm;
  *error = 0;
  if (m.row().form != persistent) comm.count(m.row().op);
  if (comm.broken()) return *error = failed(m, code_of(BROKEN, comm.why_broken())), true;
  const bool is_large = m.sent() >= comm.settings.min_nbytes || m.room() >= least_room(comm);
  const bool may = comm.compresses() && is_large;
  if (!may) note_plain(m, is_large);
  if ((!may && m.exists && !engine::driver() && !n_in_place) || !is_sound(m)) return false;
  const MessagePlan plan = plan_of(m, error);
  if (*error) return true;
  if (!plan.ours) {
    if (may && !m.sends) note_plain(m, false);
    for (const MessageBufferRef& one : {plan.sent, plan.received})
      if (one && one->on_device() && !*error) *error = failed(m, one->copy_to_host());
    return *error != 0;
  }
  if (m.row().form == persistent) {
    *error = register_persistent(std::make_shared<PersistentMessage>(m), request);
    return true;
  }
  std::shared_ptr<MessageOperation> operation;
  *error = begin(m, plan, &operation);
  if (!*error) *error = submit_or_wait(m, *operation, request);
  return true;
}

int submit_or_wait(const MessageArguments& m, MessageOperation& operation, Word* request) {
  if (m.row().form == nonblocking) return failed(m, operation.submit(request));
  const int error = failed(m, operation.wait());
  if (m.status && m.receives) operation.fill_status(m.status);
  return error;
}

}  // namespace layer
}  // namespace compcoll
