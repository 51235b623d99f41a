#include "devices.h"

#include <sched.h>

#include <algorithm>
#include <limits>

#include "engine.h"
#include "engine/clock.h"
#include "errors.h"

namespace compcoll {
namespace layer {
namespace {

// Seconds for which a wait for a small copy spins, and the longest rest between two polls.
constexpr double spinning_seconds = 2e-5, resting_seconds = 1e-5;

bool never_interrupted() { return false; }

int code_for(const engine::DeviceFault& fault) { return code_of(library().err_other, fault.text()); }

MpiFunction topo_test("PMPI_Topo_test"), cartdim_get("PMPI_Cartdim_get"), comm_rank("PMPI_Comm_rank"),
    graph_neighbors_count("PMPI_Graph_neighbors_count"),
    dist_graph_neighbors_count("PMPI_Dist_graph_neighbors_count");

// The number of neighbours that this rank sends blocks to, or receives blocks from.
int neighbours_of(Word comm, SideName side) {
  int kind = 0, n = 0, rank = 0, into = 0, out = 0, weighted = 0;
  topo_test.call(comm, &kind);
  if (kind == library().cart) return cartdim_get.call(comm, &n) ? 0 : 2 * n;
  if (kind == library().graph) {
    comm_rank.call(comm, &rank);
    return graph_neighbors_count.call(comm, rank, &n) ? 0 : n;
  }
  dist_graph_neighbors_count.call(comm, &into, &out, &weighted);
  return side == send_side ? out : into;
}

}  // namespace

namespace {

// The GPU of a buffer argument; its bytes may begin at another address.
int gpu_of(const CollectiveCall& call, SideName name) {
  const Positions& at = name == send_side ? call.op.send : call.op.recv;
  const BufferArgument& side = call.buffers[name];
  if (!call.valid || !side.given || call.words[at.buf] == library().in_place) return engine::NO_GPU;
  const Word address = side.buf;
  const int found = engine::gpu_of(reinterpret_cast<void*>(address));
  if (found != engine::NO_GPU ||
      (address && !side.types && predefined_at(library().handle_of(call.words[at.type])).handle))
    return found;
  const int n = !side.many ? 1 : call.op.neighbours ? neighbours_of(call.comm.handle, name) : call.comm.size;
  for (int i = 0; i < n; i++) {
    const Block block = call.block(name, i);
    if (memory_of(block).any)
      return engine::gpu_of(reinterpret_cast<void*>(address + Word(block.displ + block.type->lower)));
  }
  return engine::NO_GPU;
}

}  // namespace

int find_devices(CollectiveCall& call) {
  if (!engine::driver()) return 0;
  ReleaseGil released_gil;  // mpi4py holds the GIL in some calls
  for (SideName side : {send_side, recv_side}) call.gpus[side] = gpu_of(call, side);
  if (!call.on_devices()) return 0;
  bool refused = false;
  const int code = record_stream_events({call.gpus[send_side], call.gpus[recv_side]}, &call.marks, &refused);
  return refused ? code : 0;
}

int record_stream_events(const std::vector<int>& gpus, MarksRef* marks, bool* refused) {
  if (std::all_of(gpus.begin(), gpus.end(), [](int gpu) { return gpu == engine::NO_GPU; })) return 0;
  *marks = std::make_shared<engine::Marks>();
  engine::DeviceFault first;
  for (int number : gpus) {
    engine::DeviceFault fault;
    if (number == engine::NO_GPU || (*marks)->record(engine::Gpu::of(number), &fault)) continue;
    *refused = fault.code == engine::CAPTURING;
    if (*refused) return code_for(fault);
    if (!first) first = fault;
  }
  return first ? code_for(first) : 0;
}

// -- copies

void Copies::add(const engine::Layout& layout, int64_t offset, uint64_t first, uint64_t end, Word on_device,
                 uint8_t* on_host, int gpu) {
  each_run(layout, offset, first, end, [&](int64_t at, uint64_t nbytes, uint64_t rows, int64_t stride) {
    ranges.push_back({on_device + Word(at), on_host + at, nbytes, gpu, rows, stride});
  });
}

void Copies::begin(MarksRef marks, std::vector<std::shared_ptr<engine::Task>> before) {
  marks_ = std::move(marks), before_ = std::move(before);
  code_ = 0;
  begun_ = false, done_ = ranges.empty();
  if (before_.empty() && !done_) start();
}

void Copies::start() {
  begun_ = true;
  before_.clear();
  for (const CopyRange& range : ranges) {
    engine::Gpu& gpu = *engine::Gpu::of(range.gpu);
    engine::Within within(gpu);
    auto found = std::find_if(streams_.begin(), streams_.end(), [&](auto& one) { return one.gpu == &gpu; });
    if (found == streams_.end()) {
      streams_.push_back({&gpu, gpu.take_stream(), gpu.take_event()});
      found = std::prev(streams_.end());
      marks_->precede(&gpu, found->stream);
    }
    if (!range.nbytes) continue;
    if (range.source) gpu.on_device(range.on_device, range.source, range.nbytes, found->stream);
    else if (to_host_) gpu.to_host(range.on_host, range.on_device, range.nbytes, found->stream);
    else
      gpu.rows_to_device(range.on_device, range.on_host, range.nbytes, range.rows, range.stride,
                         found->stream);
  }
  for (const CopyStream& one : streams_) {
    engine::Within within(*one.gpu);
    one.gpu->record(one.event, one.stream);
  }
}

// Concludes the copies if they have ended.
void Copies::look() {
  for (const CopyStream& one : streams_) {
    engine::Within within(*one.gpu);
    if (!one.gpu->has_come(one.event)) return;
  }
  for (const CopyStream& one : streams_) {
    if (one.gpu->failed() && !code_) code_ = code_for(one.gpu->fault());
    one.gpu->put_event(one.event);
    one.gpu->put_stream(one.stream);
  }
  streams_.clear();
  marks_.reset();
  done_ = true;
}

bool Copies::step() {
  if (done_) return false;
  if (begun_) {
    look();
    return done_;
  }
  for (const auto& task : before_)
    if (!task->done()) return false;
  start();
  return true;
}

void Copies::rest(double seconds) { Task::rest(std::min(seconds, resting_seconds)); }

int Copies::wait(bool alone) {
  const double until = engine::now() + spinning_seconds;
  while (!done_ && (alone || engine::now() < until))
    if (!step()) sched_yield();
  if (done_) return code_;
  ReleaseGil released_gil;
  const std::shared_ptr<engine::Task> self(std::shared_ptr<void>(), this);
  const engine::End end =
      the_engine().wait({self}, std::numeric_limits<double>::infinity(), never_interrupted);
  if (end != engine::End::DONE)
    code_ = code_of(TIMEOUT, "this rank's GPU has not reached the call: it has waited " + timeout_text());
  return code_;
}

// -- host copies for MPI's part of a call

namespace {

// A range of a GPU buffer, as offsets from its address. `to_host`, `to_device`: true if it is copied there.
struct CopySpan {
  int64_t first, end;
  bool to_host, to_device;
};

// The blocks that MPI accesses.
std::vector<Block> blocks_of_mpi(const CollectiveCall& call, SideName name) {
  const BufferArgument& side = call.buffers[name];
  const int n = !side.many ? 1 : call.op.neighbours ? neighbours_of(call.comm.handle, name) : call.comm.size;
  std::vector<Block> blocks;
  for (int i = 0; side.given && i < n; i++) blocks.push_back(call.block(name, i));
  return blocks;
}

// The smallest own block that stays on its GPU. The driver's calls for one more copy take about as long as
// two copies of this size over PCIe.
constexpr uint64_t least_own_nbytes = 256 << 10;

// True if MPI copies the rank's own block on the host even if it stays on a GPU, since no argument can
// exclude it.
bool mpi_has_own(const Operation& op) { return op.root < 0 && !(op.pairs && op.listed); }

// The range from a block's first byte to its last. `in_parts`: only the block's own bytes are copied back.
CopySpan span_of(const CollectiveCall& call, const Block& block, SideName list, bool has_gaps,
                 bool in_parts) {
  const Operation& op = call.op;
  const int64_t lower =
      block.displ + std::min<int64_t>(0, (block.entries - 1) * block.type->extent) + block.type->lower;
  const int64_t stretch = std::abs(block.type->extent) * (block.entries - 1) + block.type->length;
  const bool in_place = op.send.buf >= 0 && call.words[op.send.buf] == library().in_place;
  const bool sends = list == send_side || op.one_buffer() || in_place;
  // Missing neighbours send nothing, and nobody sends to the first rank of an Exscan.
  const bool may_stay = op.neighbours || std::string_view(op.name) == "Exscan";
  return {lower, lower + stretch, sends || may_stay || (has_gaps && !in_parts),
          list == recv_side && !in_parts};
}

// Adds the wanted spans, in order, to the copies between a buffer on a GPU and host memory, whose first byte
// is the one at `first`. Spans that touch or overlap are merged.
void add_spans(const std::vector<CopySpan>& spans, bool CopySpan::* wanted, Word buffer, uint8_t* memory,
               int64_t first, int gpu, Copies* copies) {
  bool any = false;
  for (const CopySpan& span : spans) {
    if (!(span.*wanted)) continue;
    const Word device = buffer + Word(span.first), stop = device + Word(span.end - span.first);
    if (any && device <= copies->ranges.back().on_device + copies->ranges.back().nbytes) {
      uint64_t& nbytes = copies->ranges.back().nbytes;
      nbytes = std::max(nbytes, stop - copies->ranges.back().on_device);
    } else {
      copies->ranges.push_back({device, memory + (span.first - first), stop - device, gpu});
    }
    any = true;
  }
}

}  // namespace

// Parts of a buffer that are copied.
struct HostCopies::Side {
  std::vector<CopySpan> spans;
  std::vector<BlockMemory> parts;  // received with gaps between their bytes
};

HostCopies::HostCopies(const CollectiveCall& call, const std::vector<uint8_t>& sent,
                       const std::vector<uint8_t>& received, bool all)
    : words_(call, call.words, {}, {}), gpus_{call.gpus[send_side], call.gpus[recv_side]} {
  const Operation& op = call.op;
  std::vector<Block> blocks[2];
  if (op.reduction >= 0) call.blocks(&blocks[send_side], &blocks[recv_side]);
  else
    for (SideName name : {send_side, recv_side}) blocks[name] = blocks_of_mpi(call, name);
  if (!all) keep_own(call, blocks[recv_side]);
  const std::vector<uint8_t>* gone[] = {&sent, &received};
  Side sides[2];
  for (SideName list : {send_side, recv_side}) {
    for (size_t i = 0; i < blocks[list].size(); i++) {
      const Block& block = blocks[list][i];
      const BlockMemory memory = memory_of(block);
      const bool stays = !own_.ranges.empty() && (blocks[list].size() == 1 || int(i) == call.comm.rank);
      const bool is_gone = (i < gone[list]->size() && (*gone[list])[i]) || (stays && !mpi_has_own(op));
      if (!memory.any || gpus_[block.side] == engine::NO_GPU || is_gone) continue;
      const bool in_parts = memory.layout && block.type->known;
      CopySpan span = span_of(call, block, list, bool(memory.layout), in_parts);
      if (stays && (list == recv_side || op.send_many))  // else other ranks receive it, too
        span.to_host = span.to_device = false;
      sides[block.side].spans.push_back(span);
      if (list == recv_side && in_parts) sides[block.side].parts.push_back(memory);
    }
  }
  for (SideName side : {send_side, recv_side})
    if (!sides[side].spans.empty()) replace_buffer(call, side, &sides[side]);
}

// Copies the rank's own block between GPUs, beside MPI's part, if its send and receive sides are runs of
// equal length.
void HostCopies::keep_own(const CollectiveCall& call, const std::vector<Block>& blocks_received) {
  const Operation& op = call.op;
  Block sent, received;
  if (op.reduction >= 0 || op.neighbours || !call.own(&sent, &received)) return;
  const BlockMemory from = memory_of(sent), into = memory_of(received);
  const bool runs = from.any && into.any && !from.layout && !into.layout && from.nbytes == into.nbytes;
  if (!runs || from.nbytes < least_own_nbytes || gpus_[send_side] == engine::NO_GPU ||
      gpus_[recv_side] == engine::NO_GPU)
    return;
  // Blocks with unknown gaps are copied back with their gaps.
  const auto known = [](const Block& block) { return !block.type || block.type->known; };
  if (!known(sent) || !std::all_of(blocks_received.begin(), blocks_received.end(), known)) return;
  const Word source = call.buffers[send_side].buf + Word(from.offset), nbytes = from.nbytes;
  const Word target = call.buffers[recv_side].buf + Word(into.offset);
  if (source < target + nbytes && target < source + nbytes) return;
  own_.ranges.push_back({target, nullptr, nbytes, gpus_[recv_side]});
  own_.ranges.back().source = source;
  if (mpi_has_own(op)) return;
  if (op.root >= 0) {
    words_.words()[op.send_many ? op.recv.buf : op.send.buf] = library().in_place;
  } else {
    std::vector<uint8_t> own(size_t(call.comm.size));
    own[size_t(call.comm.rank)] = 1;
    words_ = RemainingCall(call, call.words, own, own);
  }
}

// Gives MPI host memory in place of a buffer on a GPU.
void HostCopies::replace_buffer(const CollectiveCall& call, SideName name, Side* side) {
  std::vector<CopySpan>& spans = side->spans;
  const int at = name == send_side ? call.op.send.buf : call.op.recv.buf, gpu = gpus_[name];
  int64_t first = spans[0].first, end = spans[0].end;
  for (const CopySpan& span : spans) first = std::min(first, span.first), end = std::max(end, span.end);
  engine::Gpu::of(gpu);  // pinned memory is allocated in its context
  memory_[name] = engine::pinned().get(uint64_t(end - first));
  words_.words()[at] = reinterpret_cast<Word>(memory_[name]) - Word(first);
  std::sort(spans.begin(), spans.end(),
            [](const CopySpan& a, const CopySpan& b) { return a.first < b.first; });
  add_spans(spans, &CopySpan::to_host, call.words[at], memory_[name], first, gpu, &to_host_copies_);
  add_spans(spans, &CopySpan::to_device, call.words[at], memory_[name], first, gpu, &to_device_copies_);
  for (const BlockMemory& part : side->parts)
    to_device_copies_.add(*part.layout, part.offset, 0, part.nbytes, call.words[at], memory_[name] - first,
                          gpu);
}

HostCopies::~HostCopies() {
  if (!own_.code()) own_.wait();  // still pending if MPI has refused the call
  release();
}

void HostCopies::copy_to_host(MarksRef marks) {
  marks_ = std::move(marks);
  to_host_copies_.begin(marks_);
  code_ = to_host_copies_.wait();
  if (!code_) own_.begin(marks_);
}

void HostCopies::copy_to_device() {
  if (code_) return;
  to_device_copies_.begin(marks_);
  to_device_copies_.wait();
  own_.wait();
}

void HostCopies::release() {
  marks_.reset();
  if (!to_host_copies_.done() || !to_device_copies_.done())
    return;  // keeps the memory, which a GPU may still use
  for (uint8_t*& memory : memory_) {
    if (memory) engine::pinned().put(memory, 0);
    memory = nullptr;
  }
}

void HostCopies::add_tasks(std::shared_ptr<HostCopies> self,
                           std::vector<std::shared_ptr<engine::Task>>* tasks) {
  if (code_) return;
  to_device_copies_.begin(marks_, *tasks);
  for (Copies* copies : {&own_, &to_device_copies_}) tasks->emplace_back(self, copies);
}

}  // namespace layer
}  // namespace compcoll
