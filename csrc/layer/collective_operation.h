// Pending collectives: the schedules that the engine runs, and MPI's part.
#pragma once
#include <memory>
#include <vector>

#include "check.h"
#include "pending_operation.h"
#include "plan.h"

namespace compcoll {
namespace layer {

class CollectiveOperation : public PendingOperation {
 public:
  CollectiveOperation(std::shared_ptr<Comm> comm, PlanRef plan, Name name, Form form)
      : PendingOperation(std::move(comm), name, form), plan(std::move(plan)) {}
  ~CollectiveOperation() override;

  const PlanRef plan;  // null for a call that MPI carries out

  // The communicator and the tags of frames.
  struct FrameChannel {
    Word comm;
    int first, n, refusal;
    uint64_t key = 0;  // of the private communicator of a persistent call
  };
  // Starts the engine's part on buffers at these addresses, which may lie on GPUs; MPI's code.
  int begin(const Word bases[2], const int gpus[2], const FrameChannel& channel,
            std::shared_ptr<engine::Marks> marks, std::shared_ptr<engine::Bases> last = nullptr);
  // Sends the other ranks an error in place of this rank's values.
  void poison(int code);

  // The comparison with the other ranks' calls.
  std::shared_ptr<Check> check;

  // MPI's part of the call, and its requests in C's form.
  std::shared_ptr<RemainingCall> remaining;
  Word plain = 0;
  std::vector<Word*> plains;

  double began = 0;  // start of the call
  std::shared_ptr<const Decision>
      uncompressed;  // why it is not compressed, if the engine carries it all the same
  // Objects that live until the operation ends, such as those of the persistent call that has started it.
  std::vector<std::shared_ptr<void>> keep;
  // Host copies of GPU memory; received data are copied back to the GPU.
  std::shared_ptr<HostCopies> host_copies;

 protected:
  Tasks tasks() override;
  std::shared_ptr<engine::Task> make_task() override;
  void finish() override { drop_copies(); }
  int problem() override;
  int failure() override;
  int conclude() override;
  std::string text() const override { return plan ? plan->text : text_of(name, form); }
  engine::AwaitedRanks awaited() const override;
  bool tells(const engine::AwaitedRanks& ranks) const override;

 private:
  void drop_copies();

  std::vector<std::shared_ptr<engine::Run>> runs_;
  std::shared_ptr<engine::Bases> last_;  // base frames of a persistent call
  std::vector<std::pair<uint8_t*, uint64_t>> copies_;
  std::vector<std::vector<char>> statuses_;
  std::vector<std::shared_ptr<engine::Task>> plain_tasks_;
  int poisoned_ = 0;
};

}  // namespace layer
}  // namespace compcoll
