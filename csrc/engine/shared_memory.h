// Memory shared by the processes of a node: a frame lies in the segment of the process that made it, and
// others decode it there.
//
// Each process has one segment. In front of a block are the counts of its readers and of its notices that no
// receiver has taken yet. Frames that do not fit into the segment lie in private memory and are sent by MPI.
#pragma once
#include <deque>
#include <unordered_map>

#include "segment.h"

namespace compcoll {
namespace engine {

// A frame that was taken. `frame` is null if it has no bytes, comes by MPI, or there was no memory for a
// copy.
struct Arrival {
  const uint8_t* frame = nullptr;
  uint64_t nbytes = 0;
  bool by_mpi = false;
  bool copied = false;  // true for a copy, whose owner waits for a notice
};

// The segments of this process and of others on its node.
class SharedMemory : public Allocator {
 public:
  explicit SharedMemory(std::shared_ptr<Segment> own);

  const std::shared_ptr<Segment>& own() const { return own_; }
  // Adds the segment of another process.
  void attach(const std::shared_ptr<Segment>& segment);
  bool attached(uint64_t token);

  // Blocks of the own segment, which are reused after their last reader has released them. When the segment
  // is full, `get` returns private memory, and `get_shared` and `get_pinned` return null.
  uint8_t* get(uint64_t nbytes) override;
  uint8_t* get_shared(uint64_t nbytes) { return get(pool_, nbytes); }
  uint8_t* get_pinned(uint64_t nbytes) override { return own_->pin() ? get(pinned_pool_, nbytes) : nullptr; }
  void put(uint8_t* block, uint64_t nbytes) override;
  bool owns(const uint8_t* data) const { return own_->offset_of(data); }
  // True if receivers have taken all notices of this block that were posted here.
  static bool is_taken(const uint8_t* block) { return !front(block).untaken.load(std::memory_order_acquire); }

  // Posts a notice of a frame to the process with this token; false if the frame is not in a segment. An
  // empty frame is in none, and is posted all the same.
  bool post(uint64_t token, uint64_t key, int source, int tag, const uint8_t* frame, uint64_t nbytes);
  // Posts a notice of a frame that is sent by MPI.
  void announce(uint64_t token, uint64_t key, int source, int tag, uint64_t nbytes);
  // Fetches notices, and posts those that did not fit into a mailbox.
  void progress();
  // True if all notices have reached their mailboxes.
  bool posted() const { return !n_delayed_.load(std::memory_order_acquire); }
  uint64_t arrivals() const { return arrivals_.load(std::memory_order_acquire); }
  // Takes the earliest notice for this source and tag, if there is one; its frame then has to be released.
  bool take(uint64_t key, int source, int tag, Arrival* arrival);
  // A block of private memory, to be released; throws std::bad_alloc.
  static uint8_t* get_apart(uint64_t nbytes);
  static void release(const uint8_t* frame);
  // Registers a frame's piece, so that GPUs can copy the frame in place, if its owner has registered it too.
  void pin(const uint8_t* frame);

 private:
  using Sender = std::pair<uint64_t, uint64_t>;  // key, and source with tag
  struct Hash {
    size_t operator()(const Sender& one) const { return one.first ^ (one.second * 0x9e3779b97f4a7c15); }
  };
  static Sender sender(uint64_t key, int source, int tag) {
    return {key, uint64_t(source) << 32 | uint32_t(tag)};
  }
  // In front of each block.
  struct alignas(64) Front {
    std::atomic<uint32_t> readers, untaken;
    bool apart;  // private memory, which no other process reads
  };
  struct Block {
    uint8_t* memory;
    uint64_t nbytes;
  };
  static Front& front(const uint8_t* block) {
    return *reinterpret_cast<Front*>(const_cast<uint8_t*>(block) - sizeof(Front));
  }
  uint8_t* get(Pool& pool, uint64_t nbytes);
  bool put_back(const Block& block);
  Segment* find(const uint8_t* frame, uint64_t* offset);
  uint8_t* copy(const MailboxEntry& notice);
  void deliver(uint64_t token, const MailboxEntry& notice);

  const std::shared_ptr<Segment> own_;
  Pool pool_, pinned_pool_;
  std::mutex mutex_;
  std::vector<Block> read_;  // dropped here but still read by others
  std::unordered_map<uint64_t, std::shared_ptr<Segment>> segments_;  // all segments, by token
  std::unordered_map<uint64_t, std::deque<MailboxEntry>> delayed_;  // by the token of the receiver
  std::unordered_map<Sender, std::deque<MailboxEntry>, Hash> arrived_;
  std::atomic<uint64_t> arrivals_{0}, n_delayed_{0};
};

}  // namespace engine
}  // namespace compcoll
