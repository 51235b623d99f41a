// A schedule in flight on one rank.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <queue>
#include <utility>
#include <vector>

#include "coding.h"
#include "device.h"
#include "schedule.h"
#include "task.h"
#include "wire.h"

namespace compcoll {
namespace engine {

class Workers;

// Statistics of a run.
struct Stats {
  uint64_t raw_nbytes = 0, wire_nbytes = 0, messages = 0;
  uint64_t inside_nbytes =
      0;  // messages to ranks of the same node, if any node has several; excluded from the others
  uint64_t fallbacks = 0;
  double bound = 0;    // largest absolute error of a result; NaN if unknown
  double encoded = 0;  // largest absolute error of the encoded frames
  uint64_t workers = 0;  // threads that could help
  double encode_seconds = 0, decode_seconds = 0, wait_seconds = 0;
  std::vector<std::pair<uint64_t, uint64_t>> used;  // encoded frames by codec name
  uint64_t dimensions[4] = {};                      // encoded frames by number of dimensions
};

// Tags of a call: `n` tags from `first` on, used in turn. `refusal` is the communicator's tag by which ranks
// give up mismatched calls; if it is negative, ranks do not look for such messages.
struct Tags { int first, n, refusal = -1; };

// The ranks that a run waits for: those that have sent nothing yet, or else all whose messages are pending.
struct AwaitedRanks {
  std::vector<int> ranks;
  bool are_silent = false;  // true if these ranks have sent nothing yet
  bool only_receive = false;  // true if only sends to these ranks are pending
  bool has_lower = false;  // true if a rank below this one has sent something
};

// For tests: called with every received message, which it may change.
struct RecvHook {
  void* context = nullptr;
  void (*arrived)(void* context, uint8_t* data, uint64_t nbytes) = nullptr;
};

class Run : public Task {
 public:
  // `buffers` belong to the caller and outlive the run. Without `workers`, `step` does all work. If any
  // buffer is on a GPU, the schedule's scratch memory is there too, and all GPU work comes after `marks`;
  // `direct` says whether MPI accepts device memory. `inside` codes messages within a node. `bases` must not
  // be used by anything else during the run.
  Run(std::shared_ptr<const Schedule> schedule, Coding coding, Coding inside, std::vector<Place> buffers,
      std::unique_ptr<Wire> wire, Tags tags, Pool& pool, Workers* workers,
      std::shared_ptr<Marks> marks = nullptr, bool direct = false, std::shared_ptr<Bases> bases = nullptr);
  ~Run() override;
  Run(const Run&) = delete;

  // Posts receives, and the sends whose frames can be encoded within `seconds`, before looking at any
  // arrivals.
  static constexpr double announcing = 5e-4;
  void announce(double seconds = announcing);
  // Until `announce`, but for `seconds` at most, the run encodes but neither posts nor polls. False if it has
  // already posted, is already held, or uses device memory.
  bool hold(double seconds);
  bool step() override;
  bool done() override;
  bool broken() const override { return broken_; }
  // Starts no more operations and waits for those in progress. After it returns, the caller's memory is not
  // touched.
  void give_up();
  bool is_long() const override { return schedule_->coded * itemsize(coding_.dtype) > long_nbytes; }
  void rest(double seconds) override;
  void waited(double seconds) override { stats_.wait_seconds += seconds; }
  AwaitedRanks awaited();
  // Runs one ready operation in a worker's thread; false if none is ready.
  bool work();
  bool is_on_device() const override { return is_on_device_; }

  // After the run is done.
  const Error& error() const { return error_; }
  const Stats& stats() const { return stats_; }
  void fail(const Error& error);

  static RecvHook recv_hook;

 private:
  // Ready operations, earliest first.
  using Ready = std::priority_queue<int32_t, std::vector<int32_t>, std::greater<int32_t>>;

  // Result of an operation, to be recorded by the thread that steps the run.
  struct OpResult {
    Error error;
    double seconds = 0;
    bool encodes = false;
  };

  int32_t take(Ready& ready);
  bool progress();
  bool post();
  bool poll();
  void arrived(const Done& done);
  bool begin_send(int32_t op);
  bool begin_recv(int32_t op);
  void execute(int32_t op);
  void note_pace(const Op& op, const OpResult& outcome);
  bool step_device();
  bool is_device_decode(const Op& op) const;
  bool hand_over(int32_t op, DeviceOp* one, Error* error);
  bool hand_over_copy(const Op& op, DeviceOp* one);
  void completed(const DeviceDone& done);
  Gpu* gpu_of(const BlockRef& block) const;
  uint64_t room(const Op& recv) const;
  bool is_exact(const Frame& frame) const;
  // Frames in memory that processes share need no checksum, and plain frames have none, like MPI's own
  // messages.
  bool has_checksum(const Op& encode) const {
    return encode.inside ? !inside_.plain && !wire_->allocator() : !coding_.plain;
  }
  bool on_device(int32_t block) const { return gpu_of(schedule_->blocks[block]); }
  bool needs_device(const Op& op) const;
  void fail(Problem problem, int64_t status = 0);
  uint64_t more_nbytes(int32_t op) const;
  Error check_end(int32_t op) const;
  void refuse();
  void look_for_refusal();
  Error perform(const Op& op);
  Error write_decoded(const Op& op);
  Error encode(const Op& op);
  Error decode(const Op& op);
  double copy(const Span& block, const Span& into);
  void finish(int32_t op, const OpResult& outcome);
  void note(const Op& op, const OpResult& outcome);
  void note(const Error& error);
  void make_ready(int32_t op);
  void release(const Op& op);
  void drop(int32_t frame);
  Allocator& scratch_pool();
  Base* base_of(const Op& op);
  Span span(const BlockRef& block);
  Span span(int32_t block);
  bool is_past_cache(int32_t block) const;
  uint32_t dtype_of(const BlockRef& block) const { return block.wide ? wide(coding_.dtype) : coding_.dtype; }
  BlockRef place(int32_t block, const Frame& frame) const;
  double error_of(int32_t block) const;
  void note_bound(int32_t block);

  const std::shared_ptr<const Schedule> schedule_;
  const Coding coding_, inside_;
  const std::vector<Place> buffers_;
  const std::unique_ptr<Wire> wire_;
  const Tags tags_;
  Pool& pool_;
  Workers* const workers_;
  Coder coder_, inside_coder_;
  std::unique_ptr<DeviceWork> device_;
  Gpu* scratch_gpu_ = nullptr;
  size_t device_decodes_ = 0;  // frames that the device has yet to decode; only `step` counts them
  const std::shared_ptr<Bases> bases_;

  // Written by one operation at a time.
  std::vector<Frame> frames_;
  std::vector<double> errors_;  // largest absolute error of each block's values
  // failed: any operation has failed. misfit: another rank's messages do not match the schedule. broken: the
  // run has ended early.
  std::atomic<bool> failed_{false}, misfit_{false}, broken_{false};
  std::atomic<int> busy_{0};  // operations in progress on threads or devices
  static constexpr double posts = -1;
  std::atomic<double> held_until_{0};  // 0 before anything is posted, then `posts`

  std::mutex mutex_;  // guards everything below except what only `step` uses
  std::condition_variable changed_;
  Ready messages_, work_, idle_, device_work_, device_idle_;
  static constexpr int32_t finished = -1;
  std::vector<int32_t> n_deps_;  // operations that each one still waits for, or `finished`
  std::vector<int32_t> frame_users_, scratch_users_;
  std::vector<uint8_t*> scratch_;
  size_t remaining_;
  Error error_;
  Stats stats_;

  std::mutex stepping_;  // guards everything below
  std::vector<int32_t> posting_;
  std::vector<Done> arrivals_;
  std::vector<DeviceDone> completed_;
  std::atomic<bool> is_on_device_{false};
  double last_poll_ = 0, looked_ = 0;
  bool refused_ = false;
};

}  // namespace engine
}  // namespace compcoll
