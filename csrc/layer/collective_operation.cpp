#include "collective_operation.h"

#include "devices.h"
#include "engine/clock.h"
#include "engine/task_group.h"

namespace compcoll {
namespace layer {

// -- the engine's part

CollectiveOperation::~CollectiveOperation() { drop_copies(); }

void CollectiveOperation::drop_copies() {
  for (auto [memory, nbytes] : copies_) the_engine().pool().put(memory, nbytes);
  copies_.clear();
}

int CollectiveOperation::begin(const Word bases[2], const int gpus[2], const FrameChannel& channel,
                               MarksRef marks, std::shared_ptr<engine::Bases> last) {
  last_ = std::move(last);
  for (const PlannedSchedule& part : plan->schedules) {
    std::vector<engine::Place> places;
    places.reserve(part.blocks.size());
    for (const BlockMemory& block : part.blocks) {
      auto data = reinterpret_cast<uint8_t*>(block.any ? bases[block.side] + Word(block.offset) : 0);
      if (!block.copied || !block.any) {
        places.emplace_back(data, block.layout);
        if (block.any && gpus[block.side] != engine::NO_GPU)
          places.back().gpu = engine::Gpu::of(gpus[block.side]);
        continue;
      }
      uint8_t* copy = the_engine().pool().get(block.nbytes);
      copies_.emplace_back(copy, block.nbytes);
      const engine::LayoutRef layout = block.layout ? block.layout : engine::run_layout(block.nbytes);
      gather(*layout, data, 0, block.nbytes, copy);
      places.emplace_back(copy);
    }
    std::unique_ptr<engine::Wire> wire = make_wire(engine_library(), channel.comm);
    if (part.neighbours) {
      std::shared_ptr<const engine::Neighbours> near = part.neighbours;
      if (channel.key) {
        auto other = std::make_shared<engine::Neighbours>(*near);
        other->key ^= channel.key;
        near = other;
      }
      wire = make_node_wire(std::move(wire), near);
    }
    const engine::Tags tags = {channel.first, channel.n, channel.refusal};
    runs_.push_back(the_engine().begin(part.schedule, part.coding, part.inside, std::move(places),
                                       std::move(wire), tags, marks, part.direct,
                                       part.differs ? last_ : nullptr));
  }
  return 0;
}

void CollectiveOperation::poison(int code) {
  poisoned_ = code;
  engine::Error error;
  error.problem = engine::Problem::CALLBACK;
  for (const auto& run : runs_) run->fail(error);
}

CollectiveOperation::Tasks CollectiveOperation::tasks() {
  Tasks all(runs_.begin(), runs_.end());
  for (Word* request : plains) {
    statuses_.emplace_back(library().status_nbytes);
    plain_tasks_.push_back(make_request(engine_library(), request, statuses_.back().data(), 0));
    all.push_back(plain_tasks_.back());
  }
  if (host_copies) host_copies->add_tasks(host_copies, &all);
  return all;
}

std::shared_ptr<engine::Task> CollectiveOperation::make_task() {
  if (!check) return PendingOperation::make_task();
  Tasks all = tasks();
  all.push_back(check->task());
  return std::make_shared<ComparedTasks>(all, check);
}

// -- long waits

engine::AwaitedRanks CollectiveOperation::awaited() const {
  engine::AwaitedRanks found;
  for (const auto& run : runs_)
    if (found.ranks.empty()) found = run->awaited();
  return found;
}

// Ranks 0, 1, 2, 4, 8, ... always tell, wherever the late rank is. Others tell if they may be the only ones
// that know it: a rank from which this one has heard waits as well, and so do all ranks for a root.
bool CollectiveOperation::tells(const engine::AwaitedRanks& ranks) const {
  if (!(comm->rank & (comm->rank - 1))) return true;
  const Operation& op = operations[name];
  return op.root >= 0 && op.reduction < 0 ? ranks.only_receive != (name == Gather || name == Gatherv)
                                          : ranks.are_silent && !ranks.has_lower;
}

// -- the outcome

int CollectiveOperation::problem() {
  if (!check || !check->differs()) return 0;
  abandon();
  comm->fail(std::string("the ranks made different calls beside ") + operations[name].name);
  return check->result();
}

int CollectiveOperation::failure() {
  for (const auto& run : runs_) run->give_up();
  for (size_t i = 0; i < runs_.size(); i++)
    if (runs_[i]->broken() && runs_[i]->error())
      return code_of(runs_[i]->error(), plan->schedules[i].python_ref->number());
  return 0;
}

int CollectiveOperation::conclude() {
  int error = 0;
  for (const auto& task : plain_tasks_)
    if (!error) error = error_of(*task);
  if (host_copies && !error) error = host_copies->code();
  if (host_copies && form != persistent) host_copies->release();
  if (!plan) return error;
  auto outcome = std::make_shared<Outcome>();
  outcome->name = name, outcome->accelerated = !runs_.empty();
  outcome->seconds = end_seconds_ - began;
  outcome->base_nbytes = last_ ? last_->nbytes() : 0;
  for (size_t i = 0; i < runs_.size(); i++) {
    const engine::Run& run = *runs_[i];
    if (i) add(&outcome->stats, run.stats());
    else outcome->stats = run.stats();
    outcome->decision = plan->schedules[i].decision;
    const PythonRef& python_ref = plan->schedules[i].python_ref;
    if (!error && !poisoned_ && run.error()) error = code_of(run.error(), python_ref->number());
  }
  if (uncompressed) outcome->accelerated = false, outcome->decision = uncompressed;
  if (poisoned_) error = poisoned_;
  if (plan->trial) plan->trial->add(outcome->seconds, outcome->stats.raw_nbytes, outcome->stats.wire_nbytes);
  if (!error && comm->settings.strict && outcome->stats.fallbacks)
    error = fallback_error(operations[name].name, outcome->stats.fallbacks, outcome->decision->codec);
  comm->add(outcome);
  outcome_ = std::move(outcome);
  runs_.clear();
  return error;
}

}  // namespace layer
}  // namespace compcoll
