// Notices, which tell probes the sizes of compressed messages, and the tags of their chunks.
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

// Notices of a communicator's compressed messages, and the tags of their chunks.
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
  // Reserves `n` consecutive tags, or all if there are fewer, that no other message in flight from this rank
  // uses.
  engine::Tags reserve(uint64_t n);
  uint32_t next_serial() { return serial_++; }
  // Sends the notice of a message before the message itself.
  void announce(int dest, const Notice& notice);
  std::mutex sending;  // held from a message's serial number until its first message is sent
  // Drops the notice of a message that was received; `length` is that of its first message.
  void drop(int source, int tag, int64_t length, uint32_t serial);
  // True if a notice has arrived whose message was not received; `source` and `tag` may be MPI's wildcards.
  bool expects(int source, int tag);

  // Bytes of a probed message that looks compressed; negative if they are not known yet.
  int64_t nbytes_of(int source, int tag, int64_t length);
  // Registers a posted receive of `nbytes`, until `is_over`; `source` and `tag` may be MPI's wildcards.
  void await(const void* receive, int source, int tag, uint64_t nbytes);
  void is_over(const void* receive);
  // MPI may answer the announcement of a large message after the bytes that it has queued for the same rank,
  // so the chunks of both directions should be announced before either side answers. A message's chunks
  // therefore wait for a short time for a message from their receiver, if this rank posts a receive that
  // names that rank before it posts the chunks.
  void hold(int dest, uint64_t nbytes, const std::shared_ptr<engine::Run>& chunks);
  // Announces the chunks that wait for a message from `source`.
  void announce_held(int source);

  // True if no message is pending, and the notices of all sent and received messages have arrived.
  bool is_drained();
  // True if the notices of all received messages have arrived; each one is sent before its message.
  bool up_to_date();

 private:
  // A posted receive; `answers` is its size, or 0 once a message waits for it.
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
  // Probed messages without a notice, by source, tag and length: times of the first and last probe.
  std::map<std::tuple<int, int, int64_t>, std::pair<double, double>> unannounced_;
};

// Handles an error of a receive that MPI has carried out; `status` is null if the program ignores it. If MPI
// has truncated a compressed message, nobody receives its other chunks, so the communicator fails. A wait
// does not know the communicator: all that may be the one fail.
void fail_if_truncated(int error, const void* status, Comm* comm = nullptr);

}  // namespace layer
}  // namespace compcoll
