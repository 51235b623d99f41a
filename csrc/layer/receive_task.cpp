#include "receive_task.h"

#include <algorithm>
#include <cstring>

#include "check.h"
#include "engine.h"
#include "engine/clock.h"
#include "errors.h"
#include "message_chunks.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction irecv("PMPI_Irecv"), irecv_c("PMPI_Irecv_c"), mpi_cancel("PMPI_Cancel"),
    test_cancelled("PMPI_Test_cancelled"), type_create_hindexed("PMPI_Type_create_hindexed"),
    type_commit("PMPI_Type_commit"), type_free("PMPI_Type_free");

constexpr uint64_t scratch_nbytes = largest_first_chunk + first_room;

uint32_t unsigned_of(uint64_t itemsize) {
  return itemsize == 1 ? UINT8 : itemsize == 2 ? UINT16 : itemsize == 4 ? UINT32 : UINT64;
}

}  // namespace

ReceiveTask::ReceiveTask(std::shared_ptr<Comm> comm, MessageBufferRef buffer)
    : comm_(std::move(comm)),
      buffer_(std::move(buffer)),
      notices_(comm_->compresses() ? comm_->notices : nullptr) {
  buffer_->keep_type();
}

ReceiveTask::~ReceiveTask() {
  if (notices_) notices_->is_over(this);
  if (run_) the_engine().forget(run_);
  put_scratch();
}

void ReceiveTask::put_scratch() {
  if (scratch_) the_engine().pool().put(scratch_, scratch_nbytes_);
  if (first_ && first_up_.done()) engine::pinned().put(first_, 0);  // else a GPU may still use it
  scratch_ = first_ = nullptr;
}

int ReceiveTask::post(int source, int tag) {
  const Library& mpi = library();
  nbytes_ = buffer_->nbytes;
  int64_t n = int64_t(nbytes_);
  const bool fits = n <= INT32_MAX || irecv_c.exists();
  if (!fits) buffer_->use_host_copy();
  Word where = buffer_->address, type = mpi.byte;
  const Range range = buffer_->range(nbytes_);
  Word parts = 0;  // a datatype
  const bool large = buffer_->is_run() && !buffer_->is_on_gpu() && buffer_->nbytes >= scratch_nbytes;
  if (large && (landing_.receive_in_place(range, scratch_nbytes) || !fits)) {
    where = reinterpret_cast<Word>(buffer_->place.data);
    if (!fits) n = buffer_->count, type = buffer_->handle;
  } else if (fits) {
    // Bytes beyond the longest first message are received in the buffer itself, and need no copy.
    const Range rest = {range.begin + scratch_nbytes, range.end};
    apart_ =
        large && rest.begin < rest.end && rest.end - rest.begin <= INT32_MAX && landing_.begin_write(rest);
    try {
      scratch_nbytes_ = apart_ ? scratch_nbytes : std::max(buffer_->nbytes, scratch_nbytes);
      scratch_ = the_engine().pool().get(scratch_nbytes_);
      where = reinterpret_cast<Word>(scratch_), n = int64_t(scratch_nbytes_);
    } catch (const std::bad_alloc&) {  // MPI scatters the bytes if a first message fits the buffer
      where = reinterpret_cast<Word>(buffer_->place.data), n = 1;
      type = buffer_->nbytes >= scratch_nbytes && !large ? buffer_->type_of_bytes() : 0;
      if (!type) throw;
    }
    if (apart_) {
      const int lengths[] = {int(scratch_nbytes), int(rest.end - rest.begin)};
      const int64_t places[] = {0, rest.begin - scratch_};
      type_create_hindexed.call(2, lengths, places, mpi.byte, &parts);
      type_commit.call(&parts);
      type = mpi.handle_of(parts), n = 1;
    }
  } else {
    n = buffer_->count, type = buffer_->handle;
  }
  if (notices_) notices_->await(this, source, tag, buffer_->nbytes);
  request_task_ = make_request(engine_library(), &request_, status_, nbytes_);
  MpiFunction& begin = irecv.of(n, irecv_c);
  const int error =
      begin.call(where, Word(n), type, Word(int64_t(source)), Word(int64_t(tag)), comm_->handle, &request_);
  if (parts) type_free.call(&parts);
  if (error) arrived_ = true;
  return error;
}

void ReceiveTask::take(std::shared_ptr<ReceivedMessage> arrived) {
  message_ = std::move(arrived);
  memcpy(status_, message_->status, sizeof status_);
}

bool ReceiveTask::done() { return arrived_ && first_up_.done() && (!run_ || run_->done()); }

// The thread that tests the request next cancels it.
void ReceiveTask::cancel() { cancels_ = true; }

bool ReceiveTask::step() {
  if (arrived_) {
    bool moved = first_up_.step();
    if (run_ && run_->step()) {
      moved = true;
      if (run_->done()) the_engine().forget(run_);
    }
    is_on_device_ = first_up_.is_on_device() || (run_ && run_->is_on_device());
    return moved;
  }
  if (!message_) {
    if (cancels_.exchange(false)) mpi_cancel.call(&request_);
    if (!request_task_->step()) return false;
    int cancelled = 0;
    error_ = error_of(*request_task_);
    if (!error_) test_cancelled.call(status_, &cancelled);
    if (error_ || cancelled) {
      if (notices_) notices_->is_over(this);
      landing_.end_in_place(cancelled ? 0 : buffer_->nbytes);
      arrived_ = true;
      return true;
    }
  }
  look();
  if (buffer_->on_device() && nbytes_ >= scratch_nbytes) comm_->gets_plain = !compressed_;
  if (notices_) notices_->is_over(this);
  arrived_ = true;
  return true;
}

int ReceiveTask::wrong_type(uint32_t element, uint64_t nbytes) const {
  const uint32_t expected = real_of(buffer_->element), sent = real_of(element);
  auto values = [](uint32_t code) {
    return code == UINT16 || code == UINT32 || code == UINT64 ? code - 1 : code;
  };
  if (!expected || itemsize(expected) == 1 || sent == expected) return 0;
  if (!checks && values(sent) == values(expected)) return 0;
  const std::string wanted = amount(expected, itemsize(expected));
  return code_of(MISMATCH, "rank " + std::to_string(source_of(status_)) + " has sent " +
                               amount(sent, int64_t(nbytes)) + " with tag " +
                               std::to_string(tag_of(status_)) + ", received as " +
                               wanted.substr(wanted.find(' ') + 1));
}

std::string ReceiveTask::text(uint64_t nbytes) const {
  return "the message of " + std::to_string(nbytes) + " bytes from rank " +
         std::to_string(source_of(status_));
}

int ReceiveTask::truncated(uint64_t nbytes) const {
  const std::string room = std::to_string(buffer_->nbytes);
  return code_of(library().err_truncate, text(nbytes) + " is truncated to the buffer's " + room);
}

// Handles a message that has arrived, or the first message of a compressed one.
void ReceiveTask::look() {
  const int64_t length = message_ ? int64_t(message_->bytes.size()) : nbytes_of_message(status_);
  const uint8_t* data = message_ ? message_->bytes.data() : scratch_ ? scratch_ : buffer_->place.data;
  const uint32_t element = real_of(buffer_->element);
  const bool in_place = !message_ && !scratch_;
  Opening opening;
  std::vector<uint8_t> copy;  // values are decoded to where the frame lies
  if (in_place && looks_compressed(length)) {
    copy.resize(size_t(length));
    if (buffer_->place.layout)
      gather(*buffer_->place.layout, buffer_->place.data, 0, copy.size(), copy.data());
    else memcpy(copy.data(), data, copy.size());
    data = copy.data();
  }
  compressed_ = looks_compressed(length) && (!apart_ || uint64_t(length) <= scratch_nbytes) &&
                unpack_first(data, uint64_t(length), &opening);
  if (in_place) landing_.end_in_place(compressed_ ? 0 : uint64_t(length));
  if (compressed_) {
    begin(opening, data + sizeof opening, length);
    return;
  }
  if (notices_) notices_->announce_held(source_of(status_));
  nbytes_ = uint64_t(length);
  if (nbytes_ > buffer_->nbytes) {
    fail(truncated(nbytes_));
    nbytes_ = buffer_->nbytes;
  }
  if (!in_place) {
    const uint64_t here = apart_ ? std::min(nbytes_, scratch_nbytes) : nbytes_;
    if (here) buffer_->use_host_copy();
    waits_ = !landing_.begin_write(buffer_->range(here));
    if (buffer_->known && !waits_) buffer_->unpack(data, here);
    else unpacked_.assign(data, data + here);
  }
  if (!element || itemsize(element) == 1) return;
  if (notices_ && length % 2) fail(code_of(FRAME, text(uint64_t(length)) + " is damaged"));
  else if (checks && uint64_t(length) % itemsize(element))
    fail(code_of(MISMATCH, "rank " + std::to_string(source_of(status_)) + " has sent " +
                               std::to_string(length) + " bytes with tag " + std::to_string(tag_of(status_)) +
                               ", which are received as " + amount(element, itemsize(element)).substr(2)));
}

void ReceiveTask::begin(const Opening& opening, const uint8_t* data, int64_t length) {
  const int source = source_of(status_);
  if (notices_ && !message_)  // else the probe has dropped the notice
    notices_->drop(source, tag_of(status_), length, opening.serial);
  nbytes_ = opening.n * opening.itemsize;
  set_nbytes_of_message(status_, int64_t(nbytes_));
  engine::Frame frame;
  frame.memory = const_cast<uint8_t*>(data);
  engine::Coder(receiving(UINT8).coding, the_engine().pool()).received(data, opening.frame_nbytes, &frame);
  const engine::Header& header = frame.header;
  const bool sound = frame.nbytes && itemsize(header.dtype) == opening.itemsize;
  uint64_t plane = sound && header.ndim > 1 ? header.shape[1] * header.shape[2] : 0;
  if (plane > opening.n) plane = 0;
  ChunkLayout layout(opening.n, opening.itemsize, opening.step, plane);
  const bool damaged = !sound || header.size() != layout.first;
  if (damaged && plane) layout = ChunkLayout(opening.n, opening.itemsize, opening.step);
  if (!opening.frame_nbytes)
    fail(code_of(FRAME, "another rank met an error before it could send this block"));
  else if (damaged) fail(code_of(FRAME, text(nbytes_) + " is damaged"));
  else fail(wrong_type(header.dtype, nbytes_));
  if (nbytes_ > buffer_->nbytes) fail(truncated(nbytes_));
  const bool drops = damaged || error_;
  engine::Place place = buffer_->place;
  waits_ = !drops && !landing_.begin_write(buffer_->range(nbytes_));
  if (!drops && (!buffer_->known || waits_)) {
    unpacked_.resize(nbytes_);
    place = engine::Place(unpacked_.data());
  }
  if (notices_) notices_->announce_held(source);
  const bool on_gpu = buffer_->on_gpu.gpu && !drops;
  if (layout.count) {  // chunks that are dropped are not written anywhere
    const engine::Coding& coding = receiving(sound ? header.dtype : unsigned_of(opening.itemsize)).coding;
    const auto n_tags = std::min<uint64_t>(layout.count, uint64_t(comm_->tags.n_of_messages()));
    run_ = the_engine().begin(layout.schedule(source, false, on_gpu, drops), coding, coding,
                              {on_gpu ? buffer_->on_gpu : place},
                              make_wire(engine_library(), notices_->frames->handle()),
                              {int(opening.stream), int(n_tags)}, buffer_->marks());
    run_->announce();
  }
  if (drops) return;
  if (on_gpu) place = engine::Place(first_ = engine::pinned().get(header.nbytes()));
  decode_first(frame, layout.first, place);
  if (!on_gpu || error_) return;
  const auto where = reinterpret_cast<Word>(buffer_->on_gpu.data);
  first_up_.ranges.push_back({where, first_, header.nbytes(), buffer_->gpu});
  first_up_.begin(buffer_->marks());
  is_on_device_ = true;
}

void ReceiveTask::decode_first(const engine::Frame& frame, uint64_t n, const engine::Place& place) {
  const Receiving& how = receiving(frame.header.dtype);
  const double start = engine::now();
  const uint64_t nbytes = frame.header.nbytes();
  std::vector<uint8_t> apart(place.layout ? nbytes : 0);
  uint8_t* into = place.layout ? apart.data() : place.data;
  engine::Coder coder(how.coding, the_engine().pool());
  if (engine::Error error = coder.decode(frame, {into, n, frame.header.dtype}))
    fail(code_of(error, how.python_ref->number()));
  if (place.layout) scatter(*place.layout, place.data, 0, nbytes, into);
  stats_.decode_seconds += engine::now() - start;
  raise_bound(frame.bound(), &stats_.bound);
}

void ReceiveTask::finish() {
  if (run_) {
    add(&stats_, run_->stats());
    if (!error_ && run_->error()) fail(code_of(run_->error(), receiving(UINT8).python_ref->number()));
    the_engine().forget(run_);
    run_.reset();
  }
  if (waits_ && (!error_ || !compressed_))
    landing_.write_around(buffer_->range(unpacked_.size()), [this](auto&& write) {
      buffer_->each_stretch(unpacked_.data(), unpacked_.size(), write);
    });
  else if (!error_ && !unpacked_.empty()) buffer_->unpack(unpacked_.data(), unpacked_.size());
  landing_.end_write();
  put_scratch();
  message_.reset();
  int cancelled = 0;
  test_cancelled.call(status_, &cancelled);
  if (error_ || cancelled) return;
  fail(first_up_.ranges.empty() ? buffer_->copy_to_device(nbytes_) : first_up_.code());
}

}  // namespace layer
}  // namespace compcoll
