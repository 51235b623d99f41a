// A compressed message on the wire: the first message of it in ordinary clothes, chunks on the private
// communicator, and a notice for probes.
//
// The first message travels on the program's communicator under its tag, so that MPI finds the receive for
// it: an `Opening`, the first chunk's frame, and padding, which gives it a length that few others have. All
// of it is in there where one chunk is enough. It is never longer than the values for which it stands: else
// these go as they are. A receive looks at the beginning of any message of such a length, and a probe for its
// notice, which is sent before it.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm.h"
#include "engine/run.h"

namespace compcoll {
namespace layer {

// What a first message begins with.
struct Opening {
  uint64_t n;  // elements of the whole message
  uint32_t step;  // of a chunk; 0 where the first one is all there is
  uint32_t itemsize;
  uint32_t stream;  // the tag of the second chunk; each further one has the next
  uint32_t serial;  // by which its notice is known
  uint32_t frame_nbytes;  // 0 where the sender could not encode its values
  uint32_t checksum;  // of what is before it
};

// First messages have at least so many bytes; and what is left of these when divided by a unit.
constexpr uint64_t least_first = 1024, unit_of_first = 128, rest_of_first = 77;
// First chunks have so many bytes at most, so that they fit a receive's scratch memory; and so many where
// others follow: MPI sends such a message at once, and both sides know of each other's chunks before either
// waits for one.
constexpr uint64_t largest_first_chunk = 1 << 20, opening_chunk = 8 << 10;
// A first message may be larger than its chunk by this much.
constexpr uint64_t first_room = sizeof(Opening) + engine::HEADER_NBYTES + least_first + unit_of_first;

inline bool looks_compressed(int64_t nbytes) {
  return nbytes >= int64_t(least_first) && nbytes % int64_t(unit_of_first) == int64_t(rest_of_first);
}

// A first message. Its frame is encoded where it belongs: the message is the frame's allocator.
class FirstMessage : public engine::Allocator {
 public:
  ~FirstMessage() override { clear(); }
  uint8_t* get(uint64_t nbytes) override;
  void put(uint8_t*, uint64_t) override {}  // it goes with the message
  // Puts the opening before the frame, and padding behind it.
  void pack(Opening opening);
  void clear();
  bool empty() const { return !size_; }
  uint64_t size() const { return size_; }
  const uint8_t* data() const { return memory_ + lead - sizeof(Opening); }

 private:
  static constexpr uint64_t lead = 64;  // keeps the frame aligned
  uint8_t* memory_ = nullptr;
  uint64_t room_ = 0, size_ = 0;
};

// What a first message begins with; false if these bytes are none.
bool unpack_first(const uint8_t* data, uint64_t nbytes, Opening* opening);

// How a message of `n` elements is cut.
struct ChunkLayout {
  // `plane` and `row` as in engine::BlockRef, of one that has a shape; `step` elements of a chunk, 0 where
  // there is one.
  ChunkLayout(uint64_t n, uint32_t itemsize, uint64_t step, uint64_t plane = 0, uint64_t row = 0);
  uint64_t n, itemsize, step, plane, row;
  uint64_t first, count;  // elements of the first chunk, and the number of those behind it
  // One side of those, in a buffer that holds the whole message, on a GPU or not; `drops`: what is received is
  // of no use.
  std::shared_ptr<const engine::Schedule> schedule(int peer, bool sends, bool on_gpu, bool drops) const;
};

// How messages of one type, size and destination, on GPUs or not, are sent: what Python decides once.
class MessageChunks {
 public:
  MessageChunks(const engine::Coding& coding, KeptRef kept, std::shared_ptr<const Way> way,
                const ChunkLayout& layout, bool on_gpu)
      : coding(coding), kept(std::move(kept)), way(std::move(way)), layout(layout), on_gpu_(on_gpu) {}
  const engine::Coding coding;
  const KeptRef kept;  // Python's side of that
  const std::shared_ptr<const Way> way;
  const ChunkLayout layout;
  // The sender's schedule, kept from the second message on if chunks are few: sizes may vary.
  std::shared_ptr<const engine::Schedule> schedule(int dest) const;

 private:
  const bool on_gpu_;  // where the sender has them
  mutable std::mutex mutex_;
  mutable bool is_used_ = false;
  mutable std::shared_ptr<const engine::Schedule> schedule_;
};

// How frames of any codec are decoded to elements of a type, with Python's side of it.
struct Receiving {
  engine::Coding coding;
  KeptRef kept;
};
void set_receiving(uint32_t dtype, const engine::Coding& coding, KeptRef kept);
const Receiving& receiving(uint32_t dtype);

// Notices of compressed messages of a communicator, and tags of their chunks.
class Notices {
 public:
  Notices(std::shared_ptr<PrivateComm> frames, int tag, int first, int n)
      : frames(std::move(frames)), tag_(tag), first_(first), n_(n) {}
  const std::shared_ptr<PrivateComm> frames;

  struct Notice {
    Opening opening;
    int64_t length;  // of the first message
    int32_t tag;
  };
  // The first of so many tags of no other message on its way from here, at most as many as there are.
  engine::Tags reserve(uint64_t n);
  uint32_t next_serial() { return serial_++; }
  // Says that a message is about to be sent.
  void announce(int dest, const Notice& notice);
  std::mutex sending;  // held from the number of a message until it has left
  // A message was received, of which the first one had this length.
  void drop(int source, int tag, int64_t length, uint32_t serial);
  // True if a notice has come of a message that was not received; source and tag may be MPI's for any.
  bool expects(int source, int tag);

  // Bytes of a message that a probe has found and that looks compressed; negative where they are not known
  // yet.
  int64_t nbytes_of(int source, int tag, int64_t length);
  // A receive of so many bytes waits for messages of any source and tag that match, until it is `over`.
  void await(const void* receive, int source, int tag, uint64_t nbytes);
  void is_over(const void* receive);
  // MPI may answer the announcement of a large message behind the bytes that it has queued for the same rank,
  // so the chunks of both directions are to be announced before either side answers. A message's chunks
  // therefore wait for a message of their receiver, for a short time, if a receive that names this rank is
  // posted before the chunks are.
  void hold(int dest, uint64_t nbytes, const std::shared_ptr<engine::Run>& chunks);
  // Announces the chunks that wait for a message of this rank.
  void announce_held(int source);

  // Whether no message is under way, and all notices sent, and of what was received, have arrived.
  bool settled();
  // True if the notices of all received messages have arrived; each one is sent before its message.
  bool up_to_date();

 private:
  // `answers`: bytes of a receive that no message has waited for yet.
  struct Awaited {
    int source, tag;
    uint64_t answers;
  };
  struct Held {
    int dest;
    uint64_t nbytes;
    std::weak_ptr<engine::Run> chunks;
  };
  void collect();
  bool exchanged();
  static void pair(const Held& held, Awaited* awaited);
  bool awaited(int source, int tag);

  const int tag_, first_, n_;
  std::atomic<uint32_t> serial_{0};
  std::mutex mutex_;
  uint64_t used_ = 0;
  struct Sent {
    Notice notice;
    Word request;
  };
  std::deque<std::unique_ptr<Sent>> sent_;
  std::map<std::pair<int, uint32_t>, Notice> known_;  // by source and serial number
  std::map<std::pair<int, uint32_t>, bool> late_;  // messages received before their notices
  std::map<const void*, Awaited> awaiting_;
  std::vector<Held> held_;
  // Messages without a notice, by source, tag and length: when one was found first, and last.
  std::map<std::tuple<int, int, int64_t>, std::pair<double, double>> unannounced_;
};

// MPI has ended a receive of its own with this error, and this status, null if the program ignores it. If it
// has truncated a compressed message, nobody receives the other chunks, and the communicator fails: a wait
// does not know it, and fails each one that may be meant.
void fail_if_truncated(int error, const void* status, Comm* comm = nullptr);

}  // namespace layer
}  // namespace compcoll
