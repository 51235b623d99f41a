// A process's part of the memory that those of a node share: a mailbox, where others post notices of frames, and
// blocks of memory.
//
// Segments are anonymous files (memfd_create), so a process that is killed leaves nothing behind. One grows by
// pieces, which others map when the first frame in one comes to them.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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

}  // namespace engine
}  // namespace compcoll
