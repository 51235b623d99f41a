// Notices of compressed messages, by which probes know their sizes, and tags of their chunks.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "comm.h"
#include "engine/run.h"
#include "first_message.h"

namespace compcoll {
namespace layer {

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
  bool is_drained();
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
