// Operations of a run on memory of GPUs: launches, copies and events, moved on by the thread that steps the
// run, which never waits for a GPU.
//
// What is ready together is one launch. Frames are staged through pinned memory of the host, from where MPI
// sends them, or stay on the device for an MPI that takes them there. What a codec has no kernels for is
// copied to the host, coded there, and copied back.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "coding.h"
#include "kernels.h"
#include "schedule.h"

namespace compcoll {
namespace engine {

// An operation, with the memory that it is about. Without a GPU a block is the host's.
struct DeviceOp {
  int32_t op = NONE;
  Kind kind = COPY;  // also RECV of a frame whose header is on the device
  Span block = {}, into = {};  // COPY: from the first to the second
  Gpu *gpu = nullptr, *into_gpu = nullptr;
  Frame *frame = nullptr, *other = nullptr, *made = nullptr;
  Base* base = nullptr;
  double carried = 0;  // ENCODE: the error of the block's values
  bool inside = false;  // coded for the ranks of a node
  bool taken = false;  // ENCODE: the owner takes the values of the frame
};

// One that has ended.
struct DeviceDone {
  int32_t op;
  Error error;
  double bound;  // what it adds to the error of a block
};

class DeviceWork {
 public:
  // `marks` come before all of it. `direct`: frames of blocks on a device stay there.
  DeviceWork(Coder& coder, Coder& inside, Pool& pool, std::shared_ptr<Marks> marks, bool direct);
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;

  bool direct() const { return direct_; }
  void begin(const DeviceOp& op) { begun_.push_back(op); }
  // Starts what has begun, and takes what has ended; whether anything moved.
  bool step(std::vector<DeviceDone>* done);
  // Operations under way.
  size_t under_way() const { return begun_.size() + all_.size() - idle_.size(); }

 private:
  enum class Verb { ENCODE, DECODE, DECODE_ADD, SUM, CONVERT, FIND_LARGEST, GATHER };
  // The kernels of an operation.
  struct Plan {
    Gpu* gpu;
    Verb verb;
    uint64_t packed, words[2];
    uint32_t dtype, ndim;
    uint64_t generation;  // of the GPU's kernels, when they were looked up
    std::string codec;
    bool complete;  // whether there are kernels, and all are loaded
    std::vector<Kernel> kernels;
  };
  struct Machine;
  struct Lane;

  // Memory of one launch, and of the machines that it serves.
  struct Launch {
    Gpu* gpu;
    Lane* lane;
    std::vector<Machine*> machines;
    size_t n_jobs, users;
    uint8_t *control, *memory;  // on the host, and the device
    uint64_t nbytes;  // of the latter
    std::vector<uint8_t*> staged;  // pinned copies of frames
    Result* results() const { return reinterpret_cast<Result*>(control); }
    Job* jobs() const { return reinterpret_cast<Job*>(control + n_jobs * sizeof(Result)); }
    uint64_t control_nbytes() const { return n_jobs * (sizeof(Result) + sizeof(Job)); }
    Address at(uint64_t offset) const { return reinterpret_cast<Address>(memory) + offset; }
  };

  // Where an operation stands: begun, or waiting for an event behind what is named.
  enum class State { BEGUN, SAMPLE, SIZE, FRAME, MAGNITUDE, VALUES, HEADER, DOWN, UP };
  struct Machine {
    DeviceOp op;
    State state;
    Coder* coder;
    const Attempt *at, *end;  // ENCODE: the codecs to try
    Attempt own[2];  // those that were chosen
    bool refused;  // one has, whose place a lossless one takes
    int64_t status;
    const Plan* plan;
    Launch* launch;
    size_t job;
    uint8_t *staged, *header;  // pinned
    uint64_t nbytes;  // of the frame
    double bound;
    bool clears;  // DECODE: values are added to zeros
  };
  struct Waiting {
    void* event;
    Machine* machine;  // or all of the launch
    Launch* launch;
  };
  // A stream, and what waits for its events in their order.
  struct Lane {
    Gpu* gpu;
    void* stream;
    bool out;
    std::deque<Waiting> waiting;
  };

  Lane* lane(Gpu* gpu, bool out);
  void await(Lane* lane, Machine* machine, Launch* launch);
  bool poll();

  static const Plan* plan(Gpu* gpu, Verb verb, uint64_t codec, uint32_t dtype, uint32_t ndim = 1,
                          const uint64_t* params = nullptr);
  void enqueue(Machine* machine, uint32_t found = 0);
  bool launch_pending();
  uint64_t needs(const Machine& machine) const;
  Launch* new_launch(const std::vector<Machine*>& group, bool out, size_t n_jobs, uint64_t nbytes);
  void release(Machine* machine);
  void upload(Launch* launch, uint64_t scratch_nbytes);
  // Of kernels that form checksums, those that are wanted; or these alone.
  void launch_kernels(Launch* launch, const Plan& plan, size_t first, size_t n, bool sums_up = true,
                      bool only_sums_up = false);
  void send_payload(Launch* launch, const Frame& frame, Address to);
  void fetch_results(Launch* launch);
  void encode_group(const std::vector<Machine*>& group);
  void decode_group(const std::vector<Machine*>& group);
  void convert_group(const std::vector<Machine*>& group);
  void sum_group(const std::vector<Machine*>& group);
  void sample_group(const std::vector<Machine*>& group);

  void start(const DeviceOp& op);
  void begin(Machine* machine);
  void advance(Machine* machine, const Gpu* gpu = nullptr);
  void encode_next(Machine* machine);
  void choose(Machine* machine);
  Address allocate_frame(Machine* machine, uint64_t room);
  void fetch_frame(Machine* machine, int64_t nbytes);
  void look_at_frame(Machine* machine);
  void look_at_magnitude(Machine* machine);
  void look_at_terms(Machine* machine);
  void refuse(Machine* machine, int64_t status);
  void decode(Machine* machine);
  void look_at_values(Machine* machine);
  void copy(Machine* machine);
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
  Within* within_ = nullptr;  // of the thread that steps
  std::vector<DeviceOp> begun_;
  std::vector<std::unique_ptr<Machine>> all_;
  std::vector<Machine*> idle_, pending_, group_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Launch>> launches_;
  std::vector<Launch*> idle_launches_;
  uint64_t in_flight_ = 0;  // bytes of devices that launches have
  std::vector<DeviceDone>* done_ = nullptr;
};

}  // namespace engine
}  // namespace compcoll
