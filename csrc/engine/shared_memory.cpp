#include "shared_memory.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "frame.h"

namespace compcoll {
namespace engine {
namespace {

constexpr uint64_t keep_nbytes = 256 << 20;
constexpr std::align_val_t alignment{64};

}  // namespace

SharedMemory::SharedMemory(std::shared_ptr<Segment> own)
    : own_(std::move(own)),
      pool_(keep_nbytes, own_.get()),
      pinned_pool_(piece_nbytes, &own_->pinned_piece()) {
  attach(own_);
}

void SharedMemory::attach(const std::shared_ptr<Segment>& segment) {
  std::lock_guard<std::mutex> lock(mutex_);
  segments_[segment->address().token] = segment;
}

bool SharedMemory::attached(uint64_t token) {
  std::lock_guard<std::mutex> lock(mutex_);
  return segments_.count(token);
}

uint8_t* SharedMemory::get(uint64_t nbytes) {
  uint8_t* block = get_shared(nbytes);
  return block ? block : get_apart(nbytes);
}

uint8_t* SharedMemory::get(Pool& pool, uint64_t nbytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto back = [this](const Block& block) { return put_back(block); };
    read_.erase(std::remove_if(read_.begin(), read_.end(), back), read_.end());
  }
  nbytes += sizeof(Front);
  uint8_t* memory = pool.get(nbytes);
  if (!memory && nbytes <= piece_nbytes) {  // trimming idle blocks of other sizes may make room
    pool.trim();
    memory = pool.get(nbytes);
  }
  if (!memory) return nullptr;
  Front* made = new (memory) Front;
  made->readers = made->untaken = 0;
  made->apart = false;
  return memory + sizeof(Front);
}

uint8_t* SharedMemory::get_apart(uint64_t nbytes) {
  const uint64_t all = sizeof(Front) + nbytes + MORE_NBYTES;  // the receiver may forward it
  uint8_t* memory = static_cast<uint8_t*>(operator new(all, alignment));
  (new (memory) Front)->apart = true;
  return memory + sizeof(Front);
}

void SharedMemory::put(uint8_t* memory, uint64_t nbytes) {
  if (front(memory).apart) return release(memory);
  const Block block = {memory, nbytes};
  std::lock_guard<std::mutex> lock(mutex_);
  if (!put_back(block)) read_.push_back(block);
}

void SharedMemory::release(const uint8_t* frame) {
  Front& front = SharedMemory::front(frame);
  if (front.apart) operator delete(&front, alignment);
  else front.readers.fetch_sub(1, std::memory_order_acq_rel);
}

// Returns a block to the pool unless it still has readers.
bool SharedMemory::put_back(const Block& block) {
  if (front(block.memory).readers.load(std::memory_order_acquire)) return false;
  Pool& pool = own_->is_pinned(block.memory) ? pinned_pool_ : pool_;
  pool.put(block.memory - sizeof(Front), block.nbytes + sizeof(Front));
  return true;
}

// The segment that contains a frame, and the frame's offset; null if there is none.
Segment* SharedMemory::find(const uint8_t* frame, uint64_t* offset) {
  if ((*offset = own_->offset_of(frame))) return own_.get();
  for (const auto& [token, segment] : segments_)
    if ((*offset = segment->offset_of(frame))) return segment.get();
  return nullptr;
}

void SharedMemory::pin(const uint8_t* frame) {
  uint64_t offset = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  Segment* segment = find(frame, &offset);
  lock.unlock();
  if (segment && segment != own_.get()) segment->pin(offset);
}

bool SharedMemory::post(uint64_t token, uint64_t key, int source, int tag, const uint8_t* frame,
                        uint64_t nbytes) {
  MailboxEntry notice = {key, source, tag, 0, 0, nbytes, false, false};
  std::lock_guard<std::mutex> lock(mutex_);
  if (nbytes) {
    const Segment* segment = find(frame, &notice.offset);
    if (!segment) return false;
    notice.own = segment == own_.get();
    notice.owner = segment->address().token;
    front(frame).readers.fetch_add(1, std::memory_order_relaxed);
    if (notice.own) front(frame).untaken.fetch_add(1, std::memory_order_relaxed);
  }
  deliver(token, notice);
  return true;
}

void SharedMemory::announce(uint64_t token, uint64_t key, int source, int tag, uint64_t nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  deliver(token, {key, source, tag, 0, 0, nbytes, false, false});
}

// Posts a notice, or delays it until the mailbox has room.
void SharedMemory::deliver(uint64_t token, const MailboxEntry& notice) {
  auto& delayed = delayed_[token];
  if (!delayed.empty() || !segments_.at(token)->post(notice)) {
    delayed.push_back(notice);
    n_delayed_++;
  }
}

void SharedMemory::progress() {
  if (posted() && !own_->has_notice()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [token, delayed] : delayed_)
    while (!delayed.empty() && segments_.at(token)->post(delayed.front())) {
      delayed.pop_front();
      n_delayed_--;
    }
  for (MailboxEntry notice; own_->fetch(&notice);) {
    if (notice.back) {
      Front& copied = front(own_->at(notice.offset));
      if (notice.own) copied.untaken.fetch_sub(1, std::memory_order_acq_rel);
      copied.readers.fetch_sub(1, std::memory_order_acq_rel);
      continue;
    }
    arrived_[sender(notice.key, notice.source, notice.tag)].push_back(notice);
    arrivals_.fetch_add(1, std::memory_order_release);
  }
}

bool SharedMemory::take(uint64_t key, int source, int tag, Arrival* arrival) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = arrived_.find(sender(key, source, tag));
  if (found == arrived_.end()) return false;
  const MailboxEntry& notice = found->second.front();
  *arrival = {};
  arrival->nbytes = notice.nbytes;
  arrival->by_mpi = notice.nbytes && !notice.owner;
  if (notice.owner) arrival->frame = segments_.at(notice.owner)->at(notice.offset);
  arrival->copied = notice.owner && !arrival->frame;
  if (arrival->copied) arrival->frame = copy(notice);
  else if (notice.own) front(arrival->frame).untaken.fetch_sub(1, std::memory_order_acq_rel);
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  return true;
}

// Copies a frame that cannot be mapped into private memory; null if there is none. Notifies the owner that
// this process no longer reads the frame.
uint8_t* SharedMemory::copy(const MailboxEntry& notice) {
  uint8_t* made = nullptr;
  try {
    made = get_apart(notice.nbytes);
  } catch (const std::bad_alloc&) {}
  if (made && !segments_.at(notice.owner)->read(notice.offset, notice.nbytes, made)) {
    release(made);
    made = nullptr;
  }
  MailboxEntry back = notice;
  back.back = true;
  deliver(notice.owner, back);
  return made;
}

}  // namespace engine
}  // namespace compcoll
