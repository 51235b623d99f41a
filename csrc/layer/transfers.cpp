// Messages under way.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "abi.h"
#include "check.h"
#include "engine/clock.h"
#include "messages.h"

namespace compcoll {
namespace layer {
namespace {

Own irecv("PMPI_Irecv"), irecv_c("PMPI_Irecv_c"), isend("PMPI_Isend"), isend_c("PMPI_Isend_c"),
    issend("PMPI_Issend"), issend_c("PMPI_Issend_c"), ibsend("PMPI_Ibsend"), ibsend_c("PMPI_Ibsend_c"),
    irsend("PMPI_Irsend"), irsend_c("PMPI_Irsend_c"), mpi_cancel("PMPI_Cancel"),
    test_cancelled("PMPI_Test_cancelled"), type_create_hindexed("PMPI_Type_create_hindexed"),
    type_commit("PMPI_Type_commit"), type_free("PMPI_Type_free");

constexpr uint64_t scratch_nbytes = largest_first_chunk + first_room;
// Larger chunks may go in one direction at a time on any MPI, and smaller ones on Open MPI.
constexpr uint64_t both_ways_nbytes = 1 << 20;

std::shared_ptr<engine::Task> task_of(Word* request, void* status, uint64_t nbytes) {
  return make_request(engine_library(), request, status, nbytes);
}

void raise(double bound, double* to) {
  if (std::isnan(bound) || bound > *to) *to = bound;
}

}  // namespace

// -- in

Incoming::Incoming(std::shared_ptr<Comm> comm, BufferRef buffer)
    : comm_(std::move(comm)),
      buffer_(std::move(buffer)),
      notices_(comm_->compresses() ? comm_->notices : nullptr) {
  buffer_->keep_type();
}

Incoming::~Incoming() {
  if (notices_) notices_->is_over(this);
  if (run_) the_engine().forget(run_);
  if (scratch_) the_engine().pool().put(scratch_, scratch_nbytes_);
}

int Incoming::post(int source, int tag) {
  const Library& mpi = library();
  Word where = buffer_->address, type = mpi.byte;
  int64_t n = int64_t(buffer_->nbytes);
  nbytes_ = buffer_->nbytes;
  const bool fits = n <= INT32_MAX || irecv_c.exists();
  const Range range = buffer_->range(nbytes_);
  Word parts = 0;  // a datatype
  const bool large = buffer_->is_run() && buffer_->nbytes >= scratch_nbytes;
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
    } catch (const std::bad_alloc&) {  // MPI scatters the bytes, where a first message has room
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
  Own& begin = irecv.of(n, irecv_c);
  const int error =
      begin.call(where, Word(n), type, Word(int64_t(source)), Word(int64_t(tag)), comm_->handle, &request_);
  if (parts) type_free.call(&parts);
  if (error) arrived_ = true;
  return error;
}

void Incoming::take(std::shared_ptr<Arrived> arrived) {
  message_ = std::move(arrived);
  memcpy(status_, message_->status, sizeof status_);
}

bool Incoming::done() { return arrived_ && (!run_ || run_->done()); }

// By the thread that looks at the request next.
void Incoming::cancel() { cancels_ = true; }

bool Incoming::step() {
  if (arrived_) {
    if (!run_ || !run_->step()) return false;
    if (run_->done()) the_engine().forget(run_);
    return true;
  }
  if (!message_) {
    if (cancels_.exchange(false)) mpi_cancel.call(&request_);
    if (!request_task_->step()) return false;
    int cancelled = 0;
    error_ = error_of(*request_task_);
    if (!error_) test_cancelled.call(status_, &cancelled);
    if (error_ || cancelled) {
      if (notices_) notices_->is_over(this);
      landing_.looked(cancelled ? 0 : buffer_->nbytes);
      arrived_ = true;
      return true;
    }
  }
  look();
  if (notices_) notices_->is_over(this);
  arrived_ = true;
  return true;
}

int Incoming::wrong_type(uint32_t element, uint64_t nbytes) const {
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

// The message, or the first of a compressed one, is there.
void Incoming::look() {
  const int64_t length = message_ ? int64_t(message_->bytes.size()) : nbytes_of_message(status_);
  const uint8_t* data = message_ ? message_->bytes.data() : scratch_ ? scratch_ : buffer_->place.data;
  const uint32_t element = real_of(buffer_->element);
  const bool in_place = !message_ && !scratch_;
  Opening opening;
  std::vector<uint8_t> copy;  // values are decoded to where it lies
  if (in_place && looks_compressed(length)) {
    copy.resize(size_t(length));
    if (buffer_->place.layout)
      gather(*buffer_->place.layout, buffer_->place.data, 0, copy.size(), copy.data());
    else memcpy(copy.data(), data, copy.size());
    data = copy.data();
  }
  compressed_ = looks_compressed(length) && (!apart_ || uint64_t(length) <= scratch_nbytes) &&
                unpack_first(data, uint64_t(length), &opening);
  if (in_place) landing_.looked(compressed_ ? 0 : uint64_t(length));
  if (compressed_) {
    begin(opening, data + sizeof opening, length);
    return;
  }
  if (notices_) notices_->announce_held(source_of(status_));
  nbytes_ = uint64_t(length);
  const std::string from = " from rank " + std::to_string(source_of(status_));
  if (nbytes_ > buffer_->nbytes) {
    fail(code_of(library().err_truncate, "the message of " + std::to_string(length) + " bytes" + from +
                                             " is truncated to the buffer's " +
                                             std::to_string(buffer_->nbytes)));
    nbytes_ = buffer_->nbytes;
  }
  if (!in_place) {
    const uint64_t here = apart_ ? std::min(nbytes_, scratch_nbytes) : nbytes_;
    waits_ = !landing_.begin_write(buffer_->range(here));
    if (buffer_->known && !waits_) buffer_->unpack(data, here);
    else unpacked_.assign(data, data + here);
  }
  if (!element || itemsize(element) == 1) return;
  if (notices_ && length % 2)
    fail(code_of(FRAME, "the message of " + std::to_string(length) + " bytes" + from + " is damaged"));
  else if (checks && uint64_t(length) % itemsize(element))
    fail(code_of(MISMATCH, "rank " + std::to_string(source_of(status_)) + " has sent " +
                               std::to_string(length) + " bytes with tag " + std::to_string(tag_of(status_)) +
                               ", which are received as " + amount(element, itemsize(element)).substr(2)));
}

void Incoming::begin(const Opening& opening, const uint8_t* data, int64_t length) {
  const int source = source_of(status_);
  if (notices_ && !message_)  // else a probe has
    notices_->drop(source, tag_of(status_), length, opening.serial);
  nbytes_ = opening.n * opening.itemsize;
  engine::Frame frame;
  frame.memory = const_cast<uint8_t*>(data);
  const Receiving& raw = receiving(UINT8);
  engine::Coder(raw.coding, the_engine().pool()).received(data, opening.frame_nbytes, &frame);
  const engine::Header& header = frame.header;
  const bool sound = frame.nbytes && itemsize(header.dtype) == opening.itemsize;
  uint64_t plane = sound && header.ndim > 1 ? header.shape[1] * header.shape[2] : 0;
  if (plane > opening.n) plane = 0;
  Cut cut(opening.n, opening.itemsize, opening.step, plane);
  bool drops = !sound || header.size() != cut.first;
  if (drops && plane) cut = Cut(opening.n, opening.itemsize, opening.step);
  set_nbytes_of_message(status_, int64_t(nbytes_));
  const std::string text =
      "the message of " + std::to_string(nbytes_) + " bytes from rank " + std::to_string(source);
  if (!opening.frame_nbytes)
    fail(code_of(FRAME, "another rank met an error before it could send this block"));
  else if (drops) fail(code_of(FRAME, text + " is damaged"));
  else fail(wrong_type(header.dtype, nbytes_));
  if (nbytes_ > buffer_->nbytes)
    fail(code_of(library().err_truncate,
                 text + " is truncated to the buffer's " + std::to_string(buffer_->nbytes)));
  drops = drops || error_;
  engine::Place place = buffer_->place;
  const bool on_gpu = buffer_->on_gpu.gpu && cut.count;
  waits_ = !drops && !landing_.begin_write(buffer_->range(nbytes_));
  if (!drops && (!buffer_->known || waits_)) {
    unpacked_.resize(nbytes_);
    place = engine::Place(unpacked_.data());
  }
  const uint32_t dtype = sound                   ? header.dtype
                         : opening.itemsize == 1 ? UINT8
                         : opening.itemsize == 2 ? UINT16
                         : opening.itemsize == 4 ? UINT32
                                                 : UINT64;
  const Receiving& how = receiving(dtype);
  if (notices_) notices_->announce_held(source);
  if (cut.count) {
    // Of what is dropped nothing is written.
    std::unique_ptr<engine::Wire> wire = make_wire(engine_library(), notices_->frames->handle());
    const engine::Tags tags = {int(opening.stream),
                               int(std::min<uint64_t>(cut.count, uint64_t(comm_->tags.n_of_messages())))};
    run_ = the_engine().begin(cut.schedule(source, false, drops), how.coding, how.coding,
                              {on_gpu && !drops ? buffer_->on_gpu : place}, std::move(wire), tags,
                              buffer_->marks());
    run_->announce();
  }
  if (drops) return;
  if (on_gpu) mirrored_ = header.nbytes();  // the others are decoded where they belong
  const double start = engine::now();
  engine::Coder coder(how.coding, the_engine().pool());
  const uint64_t nbytes = header.nbytes();
  std::vector<uint8_t> apart(place.layout ? nbytes : 0);
  uint8_t* into = place.layout ? apart.data() : place.data;
  if (engine::Error error = coder.decode(frame, {into, cut.first, dtype}))
    fail(code_of(error, how.kept->number()));
  if (place.layout) scatter(*place.layout, place.data, 0, nbytes, into);
  stats_.decode_seconds += engine::now() - start;
  raise(frame.bound(), &stats_.bound);
}

void Incoming::finish() {
  if (run_) {
    add(&stats_, run_->stats());
    if (!error_ && run_->error()) fail(code_of(run_->error(), receiving(UINT8).kept->number()));
    the_engine().forget(run_);
    run_.reset();
  }
  if (waits_ && (!error_ || !compressed_))
    landing_.write_around(buffer_->range(unpacked_.size()), [this](auto&& write) {
      buffer_->each_stretch(unpacked_.data(), unpacked_.size(), write);
    });
  else if (!error_ && !unpacked_.empty()) buffer_->unpack(unpacked_.data(), unpacked_.size());
  landing_.end_write();
  if (scratch_) the_engine().pool().put(scratch_, scratch_nbytes_);
  scratch_ = nullptr;
  message_.reset();
  int cancelled = 0;
  test_cancelled.call(status_, &cancelled);
  if (!error_ && !cancelled) fail(buffer_->give_back(std::min(mirrored_, nbytes_)));
}

// -- out

Outgoing::~Outgoing() {
  if (run_) the_engine().forget(run_);
}

int Outgoing::begin(int dest, int tag, bool synchronous) {
  const Library& mpi = library();
  const engine::Coding& coding = stream->coding;
  const uint32_t each = itemsize(coding.dtype);
  const Cut cut(buffer_->nbytes / each, each, stream->step, stream->plane, stream->row);
  Notices& notices = *comm_->notices;
  frames_ = notices.frames;
  const engine::Tags tags = notices.reserve(cut.count);
  engine::Coder coder(coding, the_engine().pool());
  engine::Frame frame;
  frame.allocator = &first_;
  const engine::Place& place = buffer_->place;
  const uint64_t nbytes = cut.first * each;
  const bool on_gpu = buffer_->is_on_gpu();
  std::vector<uint8_t> apart(place.layout || on_gpu ? nbytes : 0);
  if (place.layout) gather(*place.layout, place.data, 0, nbytes, apart.data());
  if (on_gpu) {
    Copies copies(true);
    uint8_t* staged = engine::pinned().get(nbytes);
    copies.ranges.push_back({reinterpret_cast<Word>(place.data), staged, nbytes, buffer_->gpu});
    copies.begin(buffer_->marks());
    error_ = copies.wait();
    memcpy(apart.data(), staged, nbytes);
    if (copies.done()) engine::pinned().put(staged, 0);
  }
  engine::Span block = {apart.empty() ? place.data : apart.data(), cut.first, coding.dtype};
  block.plane = cut.plane, block.row = cut.row;
  const double start = engine::now();
  engine::Error error;
  if (error_) error.problem = engine::Problem::DEVICE, error.fault = buffer_->on_gpu.gpu->fault();
  else error = coder.encode(block, 0, {nullptr, 0, 0}, &frame);
  stats_.encode_seconds += engine::now() - start;
  if (error && !error_) error_ = code_of(error, stream->kept->number());
  if (error) frame.nbytes = 0;
  const uint64_t longest = error ? never : buffer_->nbytes;
  std::unique_lock<std::mutex> alone(notices.sending);  // first messages leave in the order of their numbers
  Opening opening = {
      cut.n, uint32_t(cut.step), each, uint32_t(tags.first), notices.next_serial(), uint32_t(frame.nbytes),
      0};
  first_.pack(opening);
  // A receive may be in place, and what is behind the values is not to be written.
  if (first_.size() > longest) return first_.clear(), 0;
  stats_.raw_nbytes += nbytes, stats_.wire_nbytes += first_.size(), stats_.messages++;
  if (frame.nbytes) {
    stats_.used.emplace_back(frame.header.codec, 1);
    stats_.dimensions[frame.header.ndim]++;
    stats_.fallbacks += frame.header.fallback;
    raise(frame.bound(), &stats_.bound);
  }
  first_task_ = task_of(&request_, status_, first_.size());
  if (cut.count) {  // before anything has left: the receiver would wait for what memory is missing for
    run_ = the_engine().begin(cut.schedule(dest, true, false), coding, coding,
                              {on_gpu ? buffer_->on_gpu : place},
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
  const bool one_way = mpi.abi == Abi::open_mpi || cut.step * each > both_ways_nbytes;
  if (one_way && run_->is_long() && !on_gpu) notices.hold(dest, buffer_->nbytes, run_);
  else run_->announce();
  return 0;
}

std::vector<std::shared_ptr<engine::Task>> Outgoing::tasks() const {
  std::vector<std::shared_ptr<engine::Task>> all;
  if (run_) all.push_back(run_);
  if (first_task_) all.push_back(first_task_);
  return all;
}

int Outgoing::conclude() {
  if (run_) {
    add(&stats_, run_->stats());
    raise(run_->stats().encoded, &stats_.bound);
    if (!error_ && run_->error()) error_ = code_of(run_->error(), stream->kept->number());
  }
  if (!error_) error_ = error_of(*first_task_);
  run_.reset();
  return error_;
}

// -- both

int MessageOperation::begin_receive(BufferRef buffer, int source, int tag) {
  began_ = engine::now();
  in_ = std::make_shared<Incoming>(comm, std::move(buffer));
  return in_->post(source, tag);
}

void MessageOperation::take(BufferRef buffer, std::shared_ptr<Arrived> arrived) {
  began_ = engine::now();
  in_ = std::make_shared<Incoming>(comm, std::move(buffer));
  in_->take(std::move(arrived));
}

int MessageOperation::begin_send(BufferRef buffer, std::shared_ptr<const Stream> stream, int dest, int tag,
                                 Name as) {
  if (!began_) began_ = engine::now();
  sent_ = buffer;
  const bool synchronous = as == Ssend || as == Issend || as == Ssend_init;
  if (stream) {
    out_ = std::make_unique<Outgoing>(comm, std::move(stream), std::move(buffer));
    const int error = out_->begin(dest, tag, synchronous);
    if (error || out_->has_begun()) return error;
    out_.reset();
    longer_ = true;
    if (!comm->settings.devices) sent_->mirror();
    fail(sent_->take());
  }
  const bool buffered = as == Bsend || as == Ibsend || as == Bsend_init;
  const bool ready = as == Rsend || as == Irsend || as == Rsend_init;
  Own& few = synchronous ? issend : buffered ? ibsend : ready ? irsend : isend;
  Own& many = synchronous ? issend_c : buffered ? ibsend_c : ready ? irsend_c : isend_c;
  plain_ = task_of(&request_, status_, sent_->nbytes);
  return few.of(sent_->count, many)
      .call(sent_->address, Word(sent_->count), sent_->handle, Word(int64_t(dest)), Word(int64_t(tag)),
            comm->handle, &request_);
}

void MessageOperation::give_up() {
  if (in_) in_->cancel();
  abandon();
}

void MessageOperation::tell(void* status) const {
  if (in_) copy_status(in_->status(), status);
  else PendingOperation::tell(status);
}

void MessageOperation::cancel() {
  if (in_) in_->cancel();
  if (plain_ && !in_) mpi_cancel.call(&request_);
}

void MessageOperation::abandon() {
  if (in_) in_->leave();
  if (out_) out_->leave();
  PendingOperation::abandon();
}

PendingOperation::Tasks MessageOperation::tasks() {
  Tasks all;
  if (out_) all = out_->tasks();
  if (in_) all.push_back(in_);
  if (plain_) all.push_back(plain_);
  return all;
}

void MessageOperation::finish() {
  if (in_) in_->finish();
}

int MessageOperation::conclude() {
  int error = failed_ ? failed_ : in_ ? in_->error() : 0;
  auto outcome = std::make_shared<Outcome>();
  const Name op = rows[name - n_operations].op;
  outcome->name = op;
  outcome->seconds = end_seconds_ - began_;
  if (out_) {
    const int failed = out_->conclude();
    if (!error) error = failed;
    outcome->stats = out_->stats(), outcome->way = out_->stream->way;
  }
  if (plain_ && !error) error = error_of(*plain_);
  if (in_ && in_->compressed()) add(&outcome->stats, in_->stats());
  outcome->accelerated = out_ || (in_ && in_->compressed());
  if (!outcome->way) {
    static const auto plainly = because("the message came uncompressed"), received = [] {
      auto way = std::make_shared<Way>();
      way->algorithm = "stream", way->reason = "received as it came";
      return std::shared_ptr<const Way>(way);
    }();
    static const auto longer = because("its frame would be longer");
    outcome->way = outcome->accelerated ? received : longer_ ? longer : plainly;
  }
  if (outcome->accelerated) {
    comm->accelerated++;
    totals[op].accelerated++;
    totals[op].raw_nbytes += outcome->stats.raw_nbytes;
    totals[op].wire_nbytes += outcome->stats.wire_nbytes;
  }
  if (!error && out_ && comm->settings.strict && outcome->stats.fallbacks)
    error = fallback_error(text_of(op), outcome->stats.fallbacks, outcome->way->codec);
  if (outcome->accelerated || in_ || longer_) comm->last.note(outcome);
  outcome_ = std::move(outcome);
  return error;
}

}  // namespace layer
}  // namespace compcoll
