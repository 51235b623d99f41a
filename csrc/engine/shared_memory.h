// Memory that the processes of a node share: a frame lies in the segment of the process that made it, and
// others decode it from there.
//
// Each process has one segment: a mailbox, where others post notices of frames, and blocks, each behind the
// numbers of its readers and of notices that no receiver has taken yet. Segments are anonymous files
// (memfd_create), so a process that is killed leaves nothing behind. A segment grows by pieces, which others
// map when the first frame in one comes to them. What finds no room there lies in memory of the process, and
// goes by MPI.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "pool.h"

namespace compcoll {
namespace engine {

// Bytes of a piece, and of the longest block.
constexpr uint64_t piece_nbytes = 64 << 20;
// Parts of what there is: a segment takes at most an eighth of the memory, and all pieces that a process has
// mapped, its own and others', at most a quarter of its addresses (RLIMIT_AS).
constexpr uint64_t memory_part = 8, addresses_part = 4;

// How other processes find a segment.
struct SegmentAddress {
  int64_t pid = 0;
  int32_t fd = -1;
  uint64_t token = 0;  // random, not 0: its name
};

// A frame for a receiver: it lies at an offset in the segment of its owner, who need not be the sender. One
// that no owner is named for comes by MPI, unless it has no bytes.
struct Notice {
  uint64_t key;  // of the communicator
  int32_t source, tag;
  uint64_t owner, offset, nbytes;
  bool own;  // whether the owner posts it
  bool back;  // true if it goes back to the owner, since the receiver has copied the frame
};

// A frame that was taken; it has no memory without bytes, where it comes by MPI, and where there is none.
struct Arrival {
  const uint8_t* frame = nullptr;
  uint64_t nbytes = 0;
  bool by_mpi = false;
  bool copied = false;  // its owner waits for a notice
};

// A segment, of which the mailbox is mapped, and pieces that are in use.
class Segment : public Pool::Source {
 public:
  // Null where the system has none to give. `memory_nbytes` are those that the process may have.
  static std::shared_ptr<Segment> create(uint64_t memory_nbytes);
  static std::shared_ptr<Segment> open(const SegmentAddress& address);
  ~Segment() override;
  Segment(const Segment&) = delete;

  const SegmentAddress& address() const { return address_; }
  // The address of a block; null if its piece cannot be mapped.
  uint8_t* at(uint64_t offset);
  // The offset of mapped memory; 0 for any other address.
  uint64_t offset_of(const uint8_t* data);
  // Copies bytes, whether they are mapped or not.
  bool read(uint64_t offset, uint64_t nbytes, uint8_t* into) const;

  // Any process posts; false where the mailbox is full. Its owner fetches, one thread at a time.
  bool post(const Notice& notice);
  bool fetch(Notice* notice);
  bool has_notice() const;

  // Memory for the owner's pool; null where there is no more. What is released keeps its addresses, but no
  // pages.
  uint8_t* allocate(uint64_t nbytes) override { return take(nbytes, false); }
  void release(uint8_t* memory, uint64_t nbytes) override;

  // Registers a piece with the driver, so that GPUs of this process copy to and from it: the owner a fresh one,
  // which keeps its pages, and others that one, if a block lies there. A driver that refuses is not asked again.
  bool pin();
  void pin(uint64_t offset);
  bool is_pinned(const uint8_t* memory) { return offset_of(memory) / piece_nbytes == pinned_; }
  // Memory of that piece for another pool of the owner's.
  Pool::Source& pinned_piece() { return pinned_piece_; }

 private:
  struct Mailbox;
  struct PinnedPiece : Pool::Source {
    explicit PinnedPiece(Segment& segment) : segment(segment) {}
    uint8_t* allocate(uint64_t nbytes) override { return segment.take(nbytes, true); }
    void release(uint8_t* memory, uint64_t nbytes) override { segment.release(memory, nbytes); }
    Segment& segment;
  };
  Segment(SegmentAddress address, int fd, uint8_t* mailbox, uint64_t most)
      : address_(address), fd_(fd), mailbox_(mailbox), most_(most), pinned_piece_(*this) {}
  Mailbox& mailbox() const;
  uint8_t* map_piece(uint64_t number);
  uint8_t* take(uint64_t nbytes, bool pinned);
  bool grow();
  bool register_piece(uint64_t number);

  const SegmentAddress address_;
  const int fd_;
  uint8_t* const mailbox_;
  const uint64_t most_;  // pieces
  PinnedPiece pinned_piece_;
  std::once_flag tried_;
  std::atomic<uint64_t> pinned_{0};  // the piece that is registered here
  std::mutex mutex_;  // of everything below
  std::vector<uint8_t*> pieces_;  // null where one is not mapped; the first has the mailbox
  std::map<const uint8_t*, uint64_t> offsets_;  // of mapped pieces
  std::map<uint64_t, uint64_t> free_;  // bytes from an offset on, within a piece
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
  // Has GPUs copy a frame of any segment from where it lies, if its owner's copy it there.
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
