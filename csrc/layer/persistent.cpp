#include "persistent.h"

#include <list>

#include "collective_operation.h"
#include "devices.h"
#include "engine/clock.h"
#include "requests.h"
#include "start.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction mpi_start("PMPI_Start"), request_free("PMPI_Request_free"), type_dup("PMPI_Type_dup"),
    type_free("PMPI_Type_free");

#define COMPCOLL_NONBLOCKING(n, name, method, ...) NextFunction("MPI_" #method),
NextFunction nonblocking_functions[] = {ACCELERATED(COMPCOLL_NONBLOCKING) OTHERS(COMPCOLL_NONBLOCKING)};

class PersistentCollective : public PersistentOperation {
 public:
  // Without a plan, MPI carries out the whole call.
  PersistentCollective(const CollectiveCall& call, const PlanRef& plan)
      : comm_(call.comm.shared_from_this()), plan_(plan), name_(call.name), host_copies_(call.host_copies) {
    for (SideName side : {send_side, recv_side})
      bases_[side] = call.buffers[side].buf, gpus_[side] = call.gpus[side];
    if (plan_ && plan_->schedules[0].differs) last_ = std::make_shared<engine::Bases>();
  }
  ~PersistentCollective() override {
    if (plain_ && !again_) request_free.call(&plain_);
    for (Word type : types_) type_free.call(&type);
  }

  // Prepares MPI's part; its code.
  int prepare_plain(const CollectiveCall& call) {
    const Word* words = call.words;
    if (plan_ && call.on_copies()) {
      host_copies_ = std::make_shared<HostCopies>(call, plan_->sent, plan_->received);
      words = host_copies_->words();
    }
    if (plan_) {
      remaining_ = std::make_shared<RemainingCall>(call, words, plan_->sent, plan_->received);
      words = remaining_->words();
    }
    std::vector<Word> own(words, words + call.n_words);
    own.back() = reinterpret_cast<Word>(&plain_);
    if (call.next.exists()) return call_mpi(call, own.data());
    // An MPI without persistent collectives has a nonblocking one for each start.
    again_ = &nonblocking_functions[call.name];
    own.erase(own.end() - 2);  // the info
    if (const Word sum = call.own_sum()) own[size_t(call.op.reduction)] = sum;
    for (int i = 0; call.op.kinds[i]; i++) {
      const char kind = call.op.kinds[i];
      if (kind == 't') own[size_t(i)] = kept_type(library().handle_of(own[size_t(i)]));
      if ((kind != 'v' && kind != 'w') || !own[size_t(i)]) continue;
      const size_t width = kind == 'w' ? library().handle_nbytes() : call.large_count ? 8 : 4;
      const char* given = reinterpret_cast<const char*>(own[size_t(i)]);
      arrays_.emplace_back(given, given + width * size_t(comm_->size));
      own[size_t(i)] = reinterpret_cast<Word>(arrays_.back().data());
      if (kind == 'v') continue;
      const auto counts = reinterpret_cast<const void*>(own[size_t(i) - 2]);
      for (int p = 0; p < comm_->size; p++) {
        char* place = arrays_.back().data() + size_t(p) * width;
        if (call.listed(counts, p) > 0) library().put_handle(kept_type(library().handle_at(place)), place);
      }
    }
    again_words_ = std::move(own);
    return 0;
  }
  int reserve_tags() { return comm_->persistent_tags.reserve(comm_->handle, &tags_); }
  void poison(int code) { poisoned_ = code; }

  int start(Word* request) override {
    return guarded(*comm_, [&] {
      try {
        return begin(request);
      } catch (...) {
        if (tags_) comm_->refuse(tags_->comm, tags_->refusal());
        throw;
      }
    });
  }

 private:
  int begin(Word* request) {
    if (comm_->broken()) return raise(comm_->handle, code_of(BROKEN, comm_->why_broken()));
    MarksRef marks;
    bool refused = false;
    std::vector<int> gpus = host_copies_ ? host_copies_->gpus() : std::vector<int>();
    gpus.insert(gpus.end(), gpus_, gpus_ + 2);
    const int refusal = record_stream_events(gpus, &marks, &refused);
    if (refused) return raise(comm_->handle, refusal);
    comm_->count(name_);
    auto operation = std::make_shared<CollectiveOperation>(comm_, plan_, name_, persistent);
    operation->began = engine::now();
    operation->keep = {tags_, last_, remaining_, host_copies_};
    if (host_copies_) {
      host_copies_->copy_to_host(marks);
      operation->host_copies = host_copies_;
    }
    if (plain_ || again_) {
      operation->plains.push_back(&plain_);
      const int error =
          again_ ? again_->call(again_words_.data(), int(again_words_.size())) : mpi_start.call(&plain_);
      if (error) return error;
    }
    if (plan_) {
      const CollectiveOperation::FrameChannel channel = {tags_->comm->handle(), tags_->first,
                                                         std::min(tags_->n, comm_->tags.n()),
                                                         tags_->refusal(), tags_->key()};
      const auto begin = [&] { return operation->begin(bases_, gpus_, channel, marks, last_); };
      if (int error = operation->beginning(begin)) return raise(comm_->handle, error);
      if (poisoned_) operation->poison(poisoned_);
    }
    return operation->submit(request);
  }

  // Duplicates a type that the program may free before the next start.
  Word kept_type(Word type) {
    Word made = 0;
    if (predefined_at(type).handle || type_dup.call(type, &made)) return type;
    types_.push_back(made);
    return library().handle_of(made);
  }

  const std::shared_ptr<Comm> comm_;
  const PlanRef plan_;
  const Name name_;
  std::vector<Word> types_;
  Word bases_[2];
  int gpus_[2];
  Word plain_ = 0;
  NextFunction* again_ = nullptr;
  std::vector<Word> again_words_;
  std::list<std::vector<char>> arrays_;  // of counts, displacements and types, for `again_words_`
  std::shared_ptr<HostCopies> host_copies_;
  int poisoned_ = 0;
  std::shared_ptr<RemainingCall> remaining_;
  std::shared_ptr<PersistentTags::TagRange> tags_;
  std::shared_ptr<engine::Bases> last_;
};

}  // namespace

int init_collective(CollectiveCall& call, const PlanRef& plan, int poisoned) {
  auto operation = std::make_shared<PersistentCollective>(call, plan);
  operation->poison(poisoned);
  if (!plan || plan->execution == Execution::both)
    if (int error = operation->prepare_plain(call)) return error;
  // A call that is MPI's alone, perhaps on this rank only, has no frames.
  if (plan)
    if (int error = operation->reserve_tags()) return error;
  return register_persistent(std::move(operation), &call.request);
}

}  // namespace layer
}  // namespace compcoll
