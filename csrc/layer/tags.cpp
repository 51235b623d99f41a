#include "tags.h"

#include <algorithm>

#include "pending_operation.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction comm_group("PMPI_Comm_group"), comm_create("PMPI_Comm_create"), group_free("PMPI_Group_free"),
    comm_free("PMPI_Comm_free"), comm_set_errhandler("PMPI_Comm_set_errhandler"), allreduce("PMPI_Allreduce");

// Number of calls that may be pending at once: at most, if each can have `enough_tags`, and at least; and the
// most communicators that share a private one.
constexpr int most_under_way = 1024, enough_tags = 1 << 14, fewest_under_way = 64, most_shares = 16;

std::atomic<bool> mpi_ended{false};

}  // namespace

int make_private(Word comm, Word* made) {
  const Library& mpi = library();
  Word group = 0, place = 0;
  if (int error = comm_group.call(comm, &group)) return error;
  const int error = comm_create.call(comm, mpi.handle_of(group), &place);
  group_free.call(&group);
  if (error) return error;
  *made = mpi.handle_of(place);
  return comm_set_errhandler.call(*made, mpi.errors_return);
}

int PrivateComm::n_tags() {
  const int all = library().largest_tag;
  const int shares = std::max(1, std::min(most_shares, all / (most_under_way * enough_tags)));
  return all / shares;
}

int PrivateComm::make(Word comm, std::shared_ptr<PrivateComm>* made) {
  Word handle = 0;
  const int error = make_private(comm, &handle);
  if (!error) made->reset(new PrivateComm(handle));
  return error;
}

PrivateComm::~PrivateComm() {
  if (mpi_ended) return;
  Word place;
  library().put_handle(handle_, &place);
  comm_free.call(&place);
}

int PrivateComm::reserve_tags() {
  const int shares = library().largest_tag / n_tags();
  return taken_ < shares ? taken_++ * n_tags() : -1;
}

void CallTags::begin(int first, int n) {
  const int of_calls = n - n / 8;
  first_ = first;
  turns_ = std::max(fewest_under_way, std::min(most_under_way, of_calls / enough_tags));
  n_ = of_calls / (turns_ + 1);
  check_ = first + n - 1;
}

std::shared_ptr<PendingOperation> CallTags::take_under_way(int turn) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = under_way_.find(turn);
  if (found == under_way_.end()) return nullptr;
  std::shared_ptr<PendingOperation> work = found->second.lock();
  under_way_.erase(found);
  return work;
}

int CallTags::reserve(const std::shared_ptr<PendingOperation>& pending) {
  int turn;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    turn = int(++calls_ % uint64_t(turns_));
  }
  if (auto before = take_under_way(turn)) before->join();
  if (pending) {
    std::lock_guard<std::mutex> lock(mutex_);
    under_way_[turn] = pending;
  }
  return first_ + turn * n_;
}

void CallTags::join() {
  std::vector<int> turns;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [turn, work] : under_way_) turns.push_back(turn);
  }
  for (int turn : turns)
    if (auto work = take_under_way(turn)) work->join();
}

int PersistentTags::find_free_tags(Word comm) {
  if (current_ && current_->given < n_ranges) return 0;
  // Reuses a communicator if no rank uses a range of it, else makes another one.
  std::vector<uint8_t> unused;
  for (const auto& one : all_) unused.push_back(!*one->used);
  const Library& mpi = library();
  if (!unused.empty()) {
    std::vector<uint64_t> all(unused.begin(), unused.end());
    for (uint64_t& flag : all) flag = !flag;
    allreduce.call(mpi.in_place, all.data(), int(all.size()), mpi.uint64, mpi.max, comm);
    for (size_t i = 0; i < all.size(); i++) {
      if (all[i]) continue;
      all_[i]->given = 0;
      current_ = all_[i].get();
      return 0;
    }
  }
  auto made = std::make_unique<Shared>();
  if (int error = PrivateComm::make(comm, &made->comm)) return error;
  made->used = std::make_shared<std::atomic<int>>(0);
  made->index = int(all_.size());
  all_.push_back(std::move(made));
  current_ = all_.back().get();
  return 0;
}

int PersistentTags::reserve(Word comm, std::shared_ptr<TagRange>* reserved) {
  if (int error = find_free_tags(comm)) return error;
  auto tags = std::make_shared<TagRange>();
  tags->n = library().largest_tag / n_ranges - 1;
  tags->first = current_->given++ * (tags->n + 1);
  tags->comm = current_->comm, tags->used = current_->used, tags->index = current_->index;
  ++*tags->used;
  *reserved = std::move(tags);
  return 0;
}

void end_comms() { mpi_ended = true; }

}  // namespace layer
}  // namespace compcoll
