#include "comm.h"

#include <algorithm>

#include "recorder.h"

namespace compcoll {
namespace layer {

static MpiFunction comm_get_name("PMPI_Comm_get_name"), isend("PMPI_Isend");

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ b * 0x9e3779b97f4a7c15) + 0x632be59bd9b4e019;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

std::atomic<size_t> most_calls{1024};
std::atomic<bool> looks_at_all{false};

void Comm::set_limit() {
  bool looks = looks_at_all || recorder.on() || broken_;
  uint64_t least = idle_ ? never : settings.min_nbytes;
  if (settings.plain_nbytes != never) least = std::min(least, settings.plain_nbytes / uint64_t(size));
  limit = looks ? 0 : size == 1 ? never : least;
}

size_t Comm::Hash::operator()(const std::vector<int64_t>& key) const {
  uint64_t hash = 0;
  for (int64_t word : key) hash = mixed(hash, uint64_t(word));
  return size_t(hash);
}

std::shared_ptr<const CallPlan> Comm::find_plan(const std::vector<int64_t>& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : found->second;
}

void Comm::store_plan(std::vector<int64_t> key, std::shared_ptr<const CallPlan> plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (plans_.size() >= most_calls && !plans_.count(key)) plans_.clear();
  plans_.insert_or_assign(std::move(key), std::move(plan));
}

void Comm::forget() {
  std::lock_guard<std::mutex> lock(mutex_);
  plans_.clear();
}

void Comm::fail(const std::string& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (broken_) return;
    why_broken_ = "this communicator is in an error state: " + why;
    broken_ = true;
  }
  set_limit();
}

void Comm::load_kernels(int gpu, uint32_t element) {
  const uint64_t bit = uint64_t(1) << (gpu & 63);
  if (gpus_[element].fetch_or(bit) & bit) return;
  const uint64_t own = number();
  ask_python([=](const Python& python) { python.load_kernels(own, gpu, element); });
}

void Comm::fail_without_text() noexcept {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (broken_) return;
    broken_ = true;
  }
  set_limit();
  refuse();
}

void Comm::refuse(const std::shared_ptr<PrivateComm>& lane, int tag) noexcept {
  if (!lane) return;
  lane->keep(lane);
  Word request;  // never waited for
  for (int peer = 0; peer < size; peer++)
    if (peer != rank)
      isend.call(static_cast<void*>(nullptr), 0, library().byte, peer, tag, lane->handle(), &request);
}

std::string Comm::why_broken() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (why_broken_.empty()) return "this communicator is in an error state: a call ended with an exception";
  return why_broken_;
}

std::string name_of(Word handle) {
  char name[1024] = {};
  int length = 0;
  comm_get_name.call(handle, name, &length);
  return name;
}

}  // namespace layer
}  // namespace compcoll
