// A process's part of a node's shared memory: a mailbox, to which others post notices of frames, and blocks
// of memory.
//
// Segments are anonymous files (memfd_create), so a killed process leaves nothing behind. A segment grows by
// pieces; another process maps a piece when it receives the first frame in it.
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

// Size of a piece, and of the largest block.
constexpr uint64_t piece_nbytes = 64 << 20;
// A segment takes at most 1 / memory_part of the memory. All pieces that a process has mapped, its own and
// others', take at most 1 / addresses_part of its addresses (RLIMIT_AS).
constexpr uint64_t memory_part = 8, addresses_part = 4;

// Data by which other processes find a segment.
struct SegmentAddress {
  int64_t pid = 0;
  int32_t fd = -1;
  uint64_t token = 0;  // random name, not 0
};

// A frame for a receiver, at an offset in its owner's segment; the owner need not be the sender. A frame
// without an owner is sent by MPI, unless it has no bytes.
struct MailboxEntry {
  uint64_t key;  // of the communicator
  int32_t source, tag;
  uint64_t owner, offset, nbytes;
  bool own;  // true if the owner posts it
  bool back;  // true if it returns to the owner because the receiver has copied the frame
};

// A segment with its mailbox and the pieces in use mapped.
class Segment : public Pool::Source {
 public:
  // Null if the system provides none. `memory_nbytes`: memory available to the process.
  static std::shared_ptr<Segment> create(uint64_t memory_nbytes);
  static std::shared_ptr<Segment> open(const SegmentAddress& address);
  ~Segment() override;
  Segment(const Segment&) = delete;

  const SegmentAddress& address() const { return address_; }
  // The address of a block; null if its piece cannot be mapped.
  uint8_t* at(uint64_t offset);
  // The offset of mapped memory; 0 for any other address.
  uint64_t offset_of(const uint8_t* data);
  // Copies bytes from the segment, mapped or not.
  bool read(uint64_t offset, uint64_t nbytes, uint8_t* into) const;

  // Any process may post; false if the mailbox is full. Only the owner fetches, one thread at a time.
  bool post(const MailboxEntry& notice);
  bool fetch(MailboxEntry* notice);
  bool has_notice() const;

  // Memory for the owner's pool; null when exhausted. Released memory keeps its addresses but not its pages.
  uint8_t* allocate(uint64_t nbytes) override { return take(nbytes, false); }
  void release(uint8_t* memory, uint64_t nbytes) override;

  // Registers a piece with the driver, so that GPUs of this process can copy to and from it. The owner
  // registers a new piece, which keeps its pages; other processes register that piece if the block lies in
  // it. After a failure the driver is not asked again.
  bool pin();
  void pin(uint64_t offset);
  bool is_pinned(const uint8_t* memory) { return offset_of(memory) / piece_nbytes == pinned_; }
  // Memory of that piece, for another pool of the owner.
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
  const uint64_t most_;  // limit, in pieces
  PinnedPiece pinned_piece_;
  std::once_flag tried_;
  std::atomic<uint64_t> pinned_{0};  // the piece registered in this process
  std::mutex mutex_;  // guards everything below
  std::vector<uint8_t*> pieces_;  // null if not mapped; the first one contains the mailbox
  std::map<const uint8_t*, uint64_t> offsets_;  // of mapped pieces
  std::map<uint64_t, uint64_t> free_;  // size of each free range, by offset; never across pieces
};

}  // namespace engine
}  // namespace compcoll
