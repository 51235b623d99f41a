#include "message_operation.h"

#include <algorithm>

#include "engine/clock.h"
#include "messages.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction isend("PMPI_Isend"), isend_c("PMPI_Isend_c"), issend("PMPI_Issend"), issend_c("PMPI_Issend_c"),
    ibsend("PMPI_Ibsend"), ibsend_c("PMPI_Ibsend_c"), irsend("PMPI_Irsend"), irsend_c("PMPI_Irsend_c"),
    mpi_cancel("PMPI_Cancel");

}  // namespace

int MessageOperation::begin_receive(MessageBufferRef buffer, int source, int tag,
                                    std::shared_ptr<ReceivedMessage> arrived) {
  began_ = engine::now();
  received_from_ = {source, tag, buffer->nbytes};
  in_ = std::make_shared<ReceiveTask>(comm, std::move(buffer));
  if (!arrived) return in_->post(source, tag);
  received_from_ = {source_of(arrived->status), tag_of(arrived->status), arrived->bytes.size()};
  in_->take(std::move(arrived));
  return 0;
}

int MessageOperation::begin_send(MessageBufferRef buffer, std::shared_ptr<const MessageChunks> chunks,
                                 int dest, int tag, Name as) {
  if (!began_) began_ = engine::now();
  sent_ = buffer;
  sent_to_ = {dest, tag, buffer->nbytes};
  const bool synchronous = as == Ssend || as == Issend || as == Ssend_init;
  if (chunks) {
    out_ = std::make_unique<CompressedSend>(comm, std::move(chunks), std::move(buffer));
    const int error = out_->begin(dest, tag, synchronous);
    if (error || out_->has_begun()) return error;
    out_.reset();
    longer_ = true;
    if (!comm->settings.devices) sent_->use_host_copy();
    fail(sent_->copy_to_host());
  }
  const bool buffered = as == Bsend || as == Ibsend || as == Bsend_init;
  const bool ready = as == Rsend || as == Irsend || as == Rsend_init;
  MpiFunction& few = synchronous ? issend : buffered ? ibsend : ready ? irsend : isend;
  MpiFunction& many = synchronous ? issend_c : buffered ? ibsend_c : ready ? irsend_c : isend_c;
  plain_ = make_request(engine_library(), &request_, status_, sent_->nbytes);
  return few.of(sent_->count, many)
      .call(sent_->address, Word(sent_->count), sent_->handle, Word(int64_t(dest)), Word(int64_t(tag)),
            comm->handle, &request_);
}

void MessageOperation::give_up() {
  if (in_) in_->cancel();
  abandon();
}

void MessageOperation::fill_status(void* status) const {
  if (in_) copy_status(in_->status(), status);
  else PendingOperation::fill_status(status);
}

void MessageOperation::cancel() {
  if (in_) in_->cancel();
  if (plain_ && !in_) mpi_cancel.call(&request_);
}

// Names the parts that are not complete yet.
std::string MessageOperation::text() const {
  const auto part = [](const char* preposition, const Envelope& one) {
    const std::string size = " of " + std::to_string(one.nbytes) + " bytes ", to = preposition;
    const std::string peer =
        one.peer == library().any_source ? "any rank" : "rank " + std::to_string(one.peer);
    return size + to + peer + " with " +
           (one.tag == library().any_tag ? "any tag" : "tag " + std::to_string(one.tag));
  };
  Tasks sends;
  if (out_) sends = out_->tasks();
  if (plain_) sends.push_back(plain_);
  const bool receives = in_ && !in_->done();
  const bool is_sent = std::all_of(sends.begin(), sends.end(), [](const auto& task) { return task->done(); });
  return std::string(text_of(name)) + (is_sent ? "" : part("to ", sent_to_)) +
         (is_sent || !receives ? "" : " and") + (receives ? part("from ", received_from_) : "");
}

void MessageOperation::abandon() {
  if (in_) in_->release();
  if (out_) out_->release();
  PendingOperation::abandon();
}

PendingOperation::Tasks MessageOperation::tasks() {
  Tasks all;
  if (out_) all = out_->tasks();
  if (in_) all.push_back(in_);
  if (plain_) all.push_back(plain_);
  return all;
}

void MessageOperation::finish() {
  if (in_) in_->finish();
}

int MessageOperation::conclude() {
  int error = failed_ ? failed_ : in_ ? in_->error() : 0;
  auto outcome = std::make_shared<Outcome>();
  const Name op = rows[name - n_operations].op;
  outcome->name = op;
  outcome->seconds = end_seconds_ - began_;
  if (out_) {
    const int failed = out_->conclude();
    if (!error) error = failed;
    outcome->stats = out_->stats(), outcome->decision = out_->chunks->decision;
  }
  if (plain_ && !error) error = error_of(*plain_);
  if (in_ && in_->compressed()) add(&outcome->stats, in_->stats());
  outcome->accelerated = out_ || (in_ && in_->compressed());
  if (!outcome->decision) {
    static const auto plainly = decision_by_mpi("the message came uncompressed"), received = [] {
      auto decision = std::make_shared<Decision>();
      decision->algorithm = "stream", decision->reason = "received as it came";
      return std::shared_ptr<const Decision>(decision);
    }();
    static const auto longer = decision_by_mpi("its frame would be longer");
    outcome->decision = outcome->accelerated ? received : longer_ ? longer : plainly;
  }
  if (!error && out_ && comm->settings.strict && outcome->stats.fallbacks)
    error = fallback_error(text_of(op), outcome->stats.fallbacks, outcome->decision->codec);
  if (outcome->accelerated || in_ || longer_) comm->add(outcome);
  outcome_ = std::move(outcome);
  return error;
}

}  // namespace layer
}  // namespace compcoll
