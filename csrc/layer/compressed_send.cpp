#include "compressed_send.h"

#include <mutex>

#include "abi.h"
#include "engine.h"
#include "engine/clock.h"
#include "errors.h"
#include "notices.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction isend("PMPI_Isend"), issend("PMPI_Issend");

// Larger chunks may be limited to one direction at a time. With Open MPI, chunks of any size may be.
constexpr uint64_t both_ways_nbytes = 1 << 20;

}  // namespace

CompressedSend::~CompressedSend() {
  if (run_) the_engine().forget(run_);
}

engine::Error CompressedSend::encode_first(engine::Frame* frame) {
  const ChunkLayout& layout = chunks->layout;
  const engine::Place& place = buffer_->place;
  const uint64_t nbytes = layout.first * layout.itemsize;
  std::vector<uint8_t> packed(place.layout ? nbytes : 0);
  if (place.layout) gather(*place.layout, place.data, 0, nbytes, packed.data());
  Copies copies(true);
  uint8_t* staged = nullptr;
  if (buffer_->is_on_gpu()) {
    staged = engine::pinned().get(nbytes);
    copies.ranges.push_back({reinterpret_cast<Word>(place.data), staged, nbytes, buffer_->gpu});
    copies.begin(buffer_->marks());
    error_ = copies.wait();
  }
  uint8_t* const values = staged ? staged : packed.empty() ? place.data : packed.data();
  engine::Span block = {values, layout.first, chunks->coding.dtype};
  block.plane = layout.plane, block.row = layout.row;
  frame->allocator = &first_;
  engine::Error error;
  const double start = engine::now();
  if (error_) error.problem = engine::Problem::DEVICE, error.fault = buffer_->on_gpu.gpu->fault();
  else error = engine::Coder(chunks->coding, the_engine().pool()).encode(block, 0, {nullptr, 0, 0}, frame);
  stats_.encode_seconds += engine::now() - start;
  if (error && !error_) error_ = code_of(error, chunks->python_ref->number());
  if (error) frame->nbytes = 0;
  if (staged && copies.done()) engine::pinned().put(staged, 0);
  return error;
}

int CompressedSend::begin(int dest, int tag, bool synchronous) {
  const Library& mpi = library();
  const ChunkLayout& layout = chunks->layout;
  Notices& notices = *comm_->notices;
  frames_ = notices.frames;
  const engine::Tags tags = notices.reserve(layout.count);
  engine::Frame frame;
  const engine::Error error = encode_first(&frame);
  const uint64_t longest = error ? never : buffer_->nbytes;
  std::unique_lock<std::mutex> alone(notices.sending);  // first messages leave in the order of their numbers
  const uint32_t itemsize = uint32_t(layout.itemsize), step = uint32_t(layout.step);
  const Opening opening = {
      layout.n, step, itemsize, uint32_t(tags.first), notices.next_serial(), uint32_t(frame.nbytes), 0};
  first_.pack(opening);
  // A receive may be in place, and must not write past the values.
  if (first_.size() > longest) return first_.clear(), 0;
  stats_.raw_nbytes += layout.first * layout.itemsize, stats_.wire_nbytes += first_.size(), stats_.messages++;
  if (frame.nbytes) {
    stats_.used.emplace_back(frame.header.codec, 1);
    stats_.dimensions[frame.header.ndim]++;
    stats_.fallbacks += frame.header.fallback;
    raise_bound(frame.bound(), &stats_.bound);
  }
  first_task_ = make_request(engine_library(), &request_, status_, first_.size());
  const bool on_gpu = buffer_->is_on_gpu();
  if (layout.count) {  // may run out of memory, so nothing is sent before it
    run_ = the_engine().begin(chunks->schedule(dest), chunks->coding, chunks->coding,
                              {on_gpu ? buffer_->on_gpu : buffer_->place},
                              make_wire(engine_library(), frames_->handle()), tags, buffer_->marks());
    if (error_) run_->fail(error);
  }
  notices.announce(dest, {opening, int64_t(first_.size()), tag});
  if (int failed = (synchronous ? issend : isend)
                       .call(first_.data(), int(first_.size()), mpi.byte, Word(int64_t(dest)),
                             Word(int64_t(tag)), comm_->handle, &request_))
    return failed;
  alone.unlock();
  if (!run_) return 0;
  const bool one_way = mpi.abi == Abi::open_mpi || layout.step * layout.itemsize > both_ways_nbytes;
  if (one_way && run_->is_long() && !on_gpu) notices.hold(dest, buffer_->nbytes, run_);
  else run_->announce();
  return 0;
}

std::vector<std::shared_ptr<engine::Task>> CompressedSend::tasks() const {
  std::vector<std::shared_ptr<engine::Task>> all;
  if (run_) all.push_back(run_);
  if (first_task_) all.push_back(first_task_);
  return all;
}

int CompressedSend::conclude() {
  if (run_) {
    add(&stats_, run_->stats());
    raise_bound(run_->stats().encoded, &stats_.bound);
    if (!error_ && run_->error()) error_ = code_of(run_->error(), chunks->python_ref->number());
  }
  if (!error_) error_ = error_of(*first_task_);
  run_.reset();
  return error_;
}

}  // namespace layer
}  // namespace compcoll
