// Memory that the processes of a node share: a frame lies in the segment of the process that made it, and
// others decode it from there.
//
// Each process has one segment, of which blocks lie behind the numbers of their readers and of notices that no
// receiver has taken yet. What finds no room there lies in memory of the process, and goes by MPI.
#pragma once
#include <deque>
#include <unordered_map>

#include "segment.h"

namespace compcoll {
namespace engine {

// A frame that was taken; it has no memory without bytes, where it comes by MPI, and where there is none.
struct Arrival {
  const uint8_t* frame = nullptr;
  uint64_t nbytes = 0;
  bool by_mpi = false;
  bool copied = false;  // its owner waits for a notice
};

// The segments of this process and of others on its node.
class SharedMemory : public Allocator {
 public:
  explicit SharedMemory(std::shared_ptr<Segment> own);

  const std::shared_ptr<Segment>& own() const { return own_; }
  // Has the segment of another process from now on.
  void attach(const std::shared_ptr<Segment>& segment);
  bool attached(uint64_t token);

  // Blocks of the own segment, which are used again when their last reader has released them. `get` has
  // others where no more are to be had there, and `get_shared` and `get_pinned` null.
  uint8_t* get(uint64_t nbytes) override;
  uint8_t* get_shared(uint64_t nbytes) { return get(pool_, nbytes); }
  uint8_t* get_pinned(uint64_t nbytes) override { return own_->pin() ? get(pinned_pool_, nbytes) : nullptr; }
  void put(uint8_t* block, uint64_t nbytes) override;
  bool owns(const uint8_t* data) const { return own_->offset_of(data); }
  // Whether receivers have taken all notices of a block that were posted here.
  static bool is_taken(const uint8_t* block) { return !front(block).untaken.load(std::memory_order_acquire); }

  // Posts a notice of a frame to the process with this token; false where it lies in no segment. A frame of
  // no bytes lies nowhere.
  bool post(uint64_t token, uint64_t key, int source, int tag, const uint8_t* frame, uint64_t nbytes);
  // Posts a notice of a frame that goes by MPI.
  void announce(uint64_t token, uint64_t key, int source, int tag, uint64_t nbytes);
  // Fetches notices, and posts those for which a mailbox had no room.
  void progress();
  // Whether all notices are in their mailboxes.
  bool posted() const { return !n_delayed_.load(std::memory_order_acquire); }
  uint64_t arrivals() const { return arrivals_.load(std::memory_order_acquire); }
  // Takes the earliest notice from a source under a tag, if there is one; then the frame has to be released.
  bool take(uint64_t key, int source, int tag, Arrival* arrival);
  // A block outside of segments, to be released; throws std::bad_alloc.
  static uint8_t* get_apart(uint64_t nbytes);
  static void release(const uint8_t* frame);
  // Lets GPUs copy a frame of any segment from where it lies, if its owner's copy it there.
  void pin(const uint8_t* frame);

 private:
  using Sender = std::pair<uint64_t, uint64_t>;  // key, and source with tag
  struct Hash {
    size_t operator()(const Sender& one) const { return one.first ^ (one.second * 0x9e3779b97f4a7c15); }
  };
  static Sender sender(uint64_t key, int source, int tag) {
    return {key, uint64_t(source) << 32 | uint32_t(tag)};
  }
  // What lies in front of a block.
  struct alignas(64) Front {
    std::atomic<uint32_t> readers, untaken;
    bool apart;  // from segments: nobody else reads it
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
  uint8_t* copy(const Notice& notice);
  void deliver(uint64_t token, const Notice& notice);

  const std::shared_ptr<Segment> own_;
  Pool pool_, pinned_pool_;
  std::mutex mutex_;
  std::vector<Block> read_;  // dropped here, and still read by others
  std::unordered_map<uint64_t, std::shared_ptr<Segment>> segments_;  // all, by token
  std::unordered_map<uint64_t, std::deque<Notice>> delayed_;  // by the token of the receiver
  std::unordered_map<Sender, std::deque<Notice>, Hash> arrived_;
  std::atomic<uint64_t> arrivals_{0}, n_delayed_{0};
};

}  // namespace engine
}  // namespace compcoll
