// Operations of a run on GPU memory: launches, copies and events, progressed by the thread that steps the
// run, which never waits for a GPU.
//
// Ready operations of one kind share a launch, and the jobs of all launches in a step share one copy to the
// device: if several ranks share a GPU, each such copy costs a turn of its compute engine. Frames are staged
// in pinned host memory, from where MPI sends them, or stay on the device if MPI accepts device memory.
// Blocks without kernels are copied to the host, coded there, and copied back.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "coding.h"
#include "kernels.h"
#include "schedule.h"

namespace compcoll {
namespace engine {

// An operation and its memory. Blocks without a GPU are in host memory.
struct DeviceOp {
  int32_t op = NONE;
  Kind kind = COPY;  // also RECV, for a frame whose header is on the device
  Span block = {}, into = {};  // COPY: from `block` to `into`
  Gpu *gpu = nullptr, *into_gpu = nullptr;
  Frame *frame = nullptr, *other = nullptr, *made = nullptr;
  Base* base = nullptr;
  double carried = 0;  // ENCODE: the error of the block's values
  bool inside = false;  // coded for ranks of the same node
  bool taken = false;  // ENCODE: the owner needs the values of the frame
};

// A completed operation.
struct DeviceDone {
  int32_t op;
  Error error;
  double bound;  // added to the error of a block
};

class DeviceWork {
 public:
  // `marks` come before all work. `direct`: frames of blocks on a device stay there.
  DeviceWork(Coder& coder, Coder& inside, Pool& pool, std::shared_ptr<Marks> marks, bool direct);
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;

  bool direct() const { return direct_; }
  void begin(const DeviceOp& op) { begun_.push_back(op); }
  // Starts new operations and collects completed ones; true if anything moved.
  bool step(std::vector<DeviceDone>* done);
  // Operations in flight.
  size_t under_way() const { return begun_.size() + all_.size() - idle_.size(); }

 private:
  enum class Verb { ENCODE, DECODE, DECODE_ADD, SUM, CONVERT, FIND_LARGEST, GATHER };
  // Kernels for an operation.
  struct Plan {
    Gpu* gpu;
    Verb verb;
    uint64_t packed, words[2];
    uint32_t dtype, ndim;
    uint64_t generation;  // of the GPU's kernels at look-up
    std::string codec;
    bool complete;  // true if there are kernels, and all are loaded
    std::vector<Kernel> kernels;
    // True if one pass over the payload is enough, including the checksum.
    bool in_one_go() const;
  };
  struct Machine;
  struct EventStream;

  // Results, jobs and zeroed scratch memory of several launches, both in pinned memory and on the device.
  struct Upload {
    Gpu* gpu;
    uint8_t *host, *device;
    uint64_t nbytes, used;
    size_t users;
    EventStream* lane;  // its stream has the copy; null before the copy
    void* event;  // recorded after the copy
  };
  struct Launch {
    const Plan* plan;
    std::vector<Machine*> machines;
    Upload* upload;
    uint64_t first;  // offset of its results in the upload
    size_t n_jobs, users;
    EventStream* lane;
    uint8_t* memory;  // device memory for samples, or for scratch memory that is too large for the upload
    uint64_t nbytes;  // of `memory`
    Address scratch;  // in `memory` or the upload
    bool clears;  // true if the scratch in `memory` has to be zeroed
    std::vector<uint8_t*> staged;  // pinned copies of frames
    Gpu& gpu() const { return *plan->gpu; }
    Result* results() const { return reinterpret_cast<Result*>(upload->host + first); }
    Job* jobs() const { return reinterpret_cast<Job*>(results() + n_jobs); }
    Address results_at() const { return reinterpret_cast<Address>(upload->device) + first; }
    Address jobs_at() const { return results_at() + n_jobs * sizeof(Result); }
  };

  // State of an operation: begun, or waiting for the event after the named step.
  enum class State { BEGUN, SAMPLE, SIZE, FRAME, MAGNITUDE, VALUES, HEADER, DOWN, UP };
  struct Machine {
    DeviceOp op;
    State state;
    Coder* coder;
    const Attempt *at, *end;  // ENCODE: codecs to try
    Attempt own[2];  // codecs chosen for this block
    bool refused;  // a codec has refused the values, so a lossless one is used
    int64_t status;
    const Plan* plan;
    Launch* launch;
    size_t job;
    uint8_t* memory;  // device memory for payloads
    uint64_t memory_nbytes;
    uint8_t *staged, *header;  // pinned
    const uint8_t* payloads[2];  // on the host, of frames to decode or add
    uint64_t nbytes;  // of the frame; 0 until known
    uint64_t fetched;  // bytes of the frame already on the host
    bool maps;  // ENCODE: kernels write the frame directly to host memory
    uint64_t sample;  // offset of the block's sample
    double bound;
    bool clears;  // DECODE: add the values to zeros
  };
  struct Waiting {
    void* event;
    Machine* machine;  // null: all machines of the launch
    Launch* launch;
  };
  // A stream, and the waiters for its events in order.
  struct EventStream {
    Gpu* gpu;
    void* stream;
    bool out;
    std::deque<Waiting> waiting;
  };

  EventStream* lane(Gpu* gpu, bool out);
  void await(EventStream* lane, Machine* machine, Launch* launch);
  bool poll();

  static const Plan* plan(Gpu* gpu, Verb verb, uint64_t codec, uint32_t dtype, uint32_t ndim = 1,
                          const uint64_t* params = nullptr);
  void enqueue(Machine* machine, uint32_t found = 0);
  bool launch_pending();
  std::vector<Machine*> take_group(uint64_t* nbytes);
  bool waits(const Plan& plan, uint64_t nbytes) const;
  uint64_t needs(const Machine& machine) const;
  Upload* upload_for(Gpu* gpu, uint64_t nbytes);
  Launch* new_launch(const std::vector<Machine*>& group, size_t n_jobs, uint64_t scratch_nbytes = 0);
  void allocate(Launch* launch, uint64_t nbytes);
  Address allocate(Machine* machine, uint64_t nbytes);
  void release(Machine* machine);
  void release(Upload* upload);
  void fall_back(const std::vector<Machine*>& group);
  // Fills in the jobs of operations with the same plan, and allocates the memory they need.
  Launch* describe(const std::vector<Machine*>& group);
  static void describe_header(const Machine& machine, Job* job, Result* result);
  Launch* describe_encodes(const std::vector<Machine*>& group);
  Launch* describe_decodes(const std::vector<Machine*>& group);
  Launch* describe_conversions(const std::vector<Machine*>& group);
  Launch* describe_sums(const std::vector<Machine*>& group);
  Launch* describe_samples(const std::vector<Machine*>& group);
  Launch* describe_largest(const std::vector<Machine*>& group);
  const uint8_t* payload_of(Launch* launch, const Frame& frame);
  // Enqueues a launch into a stream, after the copy of its jobs.
  void issue(Launch* launch);
  void issue_encodes(Launch* launch);
  void issue_decodes(Launch* launch);
  void issue_sums(Launch* launch);
  void issue_samples(Launch* launch);
  void send_jobs(Launch* launch);
  static bool is_mapped(const Plan& plan, const Frame& frame);
  static void send_payload(const Launch& launch, const Frame& frame, const uint8_t* payload, Address to);
  // Launches the kernels; those that form checksums only if `sums_up`, and no others if `only_sums_up`.
  void launch_kernels(Launch* launch, const Plan& plan, size_t first, size_t n, bool sums_up = true,
                      bool only_sums_up = false);
  void find_largest(Launch* launch);
  void fetch_results(Launch* launch);

  void start(const DeviceOp& op);
  void begin(Machine* machine);
  void advance(Machine* machine, const Gpu* gpu = nullptr);
  void encode_next(Machine* machine);
  void choose(Machine* machine);
  Address allocate_frame(Machine* machine, uint64_t room);
  void copy_down(Machine* machine);
  void copy_up(Machine* machine);
  uint64_t guess(const Machine& machine) const;
  static void hold(Frame* frame, uint64_t room);
  void hold_frame(Machine* machine);
  uint8_t* header_of(const Machine& machine) const;
  void fetch_frame(Machine* machine, uint64_t end);
  void look_at_size(Machine* machine);
  void look_at_frame(Machine* machine);
  void look_at_magnitude(Machine* machine);
  void look_at_terms(Machine* machine);
  void refuse(Machine* machine, int64_t status);
  void decode(Machine* machine);
  void look_at_values(Machine* machine);
  void copy(Machine* machine);
  void copy_on_device(Machine* machine);
  void sum(Machine* machine);
  void bring_down(Machine* machine);
  void on_host(Machine* machine);
  Error encode_on_host(Machine* machine);
  Error decode_on_host(Machine* machine);
  Error copy_on_host(Machine* machine);
  void end(Machine* machine, const Error& error = {});
  void drop_frame(Machine* machine);

  Coder &coder_, &inside_coder_;
  Pool& pool_;
  const std::shared_ptr<Marks> marks_;
  const bool direct_;
  Within* within_ = nullptr;  // the stepping thread's
  std::vector<DeviceOp> begun_;
  std::vector<std::unique_ptr<Machine>> all_;
  std::vector<Machine*> idle_, pending_, copies_, group_;
  std::vector<std::unique_ptr<EventStream>> lanes_;
  std::vector<std::unique_ptr<Launch>> launches_;
  std::vector<Launch*> idle_launches_, described_;
  std::vector<std::unique_ptr<Upload>> uploads_;
  std::vector<Upload*> idle_uploads_;
  Upload* open_ = nullptr;  // not sent yet
  std::vector<std::pair<const Plan*, double>> ratios_;  // of recent frames of unknown size
  uint64_t in_flight_ = 0;  // device bytes used by launches and their operations
  std::vector<DeviceDone>* done_ = nullptr;
};

}  // namespace engine
}  // namespace compcoll
