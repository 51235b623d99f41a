#include "message_buffer.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "requests.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction type_dup("PMPI_Type_dup"), type_free("PMPI_Type_free"), pack("PMPI_Pack"),
    sendrecv("PMPI_Sendrecv"), type_commit("PMPI_Type_commit"), type_contiguous("PMPI_Type_contiguous"),
    type_hvector("PMPI_Type_create_hvector"), type_hindexed("PMPI_Type_create_hindexed"),
    type_struct("PMPI_Type_create_struct");

// Makes the datatype of a layout's bytes, from the address of the first byte on; returns MPI's error code.
int make_type(const engine::Layout& layout, Word* made) {
  using engine::Layout;
  const Library& mpi = library();
  const size_t n = layout.kind == Layout::PARTS ? layout.children.size() : layout.offsets.size();
  if (std::max<uint64_t>({layout.nbytes, layout.count, n}) > INT32_MAX) return mpi.err_count;
  if (layout.kind == Layout::RUN) return type_contiguous.call(Word(layout.nbytes), mpi.byte, made);
  std::vector<int> lengths(n, 1);
  if (layout.kind == Layout::RUNS) {
    for (size_t i = 0; i < n; i++)
      lengths[i] = int(layout.each ? layout.each : layout.starts[i + 1] - layout.starts[i]);
    return type_hindexed.call(Word(n), lengths.data(), layout.offsets.data(), mpi.byte, made);
  }
  std::vector<Word> parts(layout.children.size());
  std::vector<char> handles(parts.size() * mpi.handle_nbytes());
  int error = 0;
  for (size_t i = 0; i < parts.size() && !error; i++) {
    error = make_type(*layout.children[i], &parts[i]);
    if (!error) mpi.put_handle(mpi.handle_of(parts[i]), handles.data() + i * mpi.handle_nbytes());
  }
  if (!error)
    error = layout.kind == Layout::LOOP
                ? type_hvector.call(Word(layout.count), Word(1), Word(layout.stride), mpi.handle_of(parts[0]),
                                    made)
                : type_struct.call(Word(n), lengths.data(), layout.offsets.data(), handles.data(), made);
  for (Word& part : parts)
    if (part) type_free.call(&part);
  return error;
}

Range stretch_of(Word address, int64_t count, const Type& type) {
  const int64_t others = std::max<int64_t>(count, 1) - 1;
  auto begin = reinterpret_cast<uint8_t*>(address) + std::min<int64_t>(0, others * type.extent) + type.lower;
  return {begin, begin + std::abs(type.extent) * others + type.length};
}

}  // namespace

Range stretch_of(Word address, int64_t count, Word type) {
  const Type* its = count > 0 ? type_of(type) : nullptr;
  return its ? stretch_of(address, count, *its) : Range{};
}

MessageBuffer::MessageBuffer(Word address, int64_t count, Word type, bool sent)
    : address(address), handle(library().handle_of(type)), count(count), sent_(sent) {
  type_ = type_of(handle);
  if (!type_) return;
  element = type_->element, known = type_->known;
  nbytes = count > 0 ? uint64_t(count) * type_->nbytes : 0;
  Block block;
  block.entries = count, block.type = type_;
  if (nbytes) shape = shape_of(block);
  const Range stretch = stretch_of(address, count, *type_);
  lower_ = reinterpret_cast<Word>(stretch.begin), stretch_ = uint64_t(stretch.end - stretch.begin);
  if (nbytes) gpu = engine::gpu_of(reinterpret_cast<void*>(lower_));
  if (on_device()) code_ = record_stream_events({gpu}, &marks_, &refused_);
  if (known && nbytes) {
    const Piece piece = type_->many(count);
    place = engine::Place(reinterpret_cast<uint8_t*>(address + Word(piece.offset)),
                          piece.is_run() ? nullptr : piece.layout);
  }
  if (!on_device() || !is_run() || !place.data) return;
  on_gpu = place;
  on_gpu.gpu = engine::Gpu::of(gpu);
}

void MessageBuffer::use_host_copy() {
  if (!on_device() || host_copy_) return;
  engine::Gpu::of(gpu);  // pinned memory is allocated in its context
  host_copy_ = engine::pinned().get(stretch_);
  const Word offset = reinterpret_cast<Word>(host_copy_) - lower_;
  address += offset;
  if (place.data) place.data += offset;
  // Gaps in an unknown layout are copied back too, so they get the program's values first.
  if (!sent_ && !known) copy_to_host();
}

MessageBuffer::MessageBuffer(std::vector<uint8_t> bytes, const MessageBuffer& like)
    : handle(library().byte),
      count(int64_t(bytes.size())),
      nbytes(bytes.size()),
      element(like.element),
      shape(like.shape),
      type_(like.type_),
      bytes_(std::move(bytes)),
      sent_(true) {
  address = reinterpret_cast<Word>(bytes_.data());
  place = engine::Place(bytes_.data());
}

MessageBuffer::~MessageBuffer() {
  if (host_copy_ && !lost_) engine::pinned().put(host_copy_, 0);
  for (Word* type : {&kept_, &of_bytes_})
    if (*type) type_free.call(type);
}

int MessageBuffer::copy_to_host() { return !on_device() || code_ ? code_ : code_ = copy(true, all, false); }

int MessageBuffer::copy_to_device(uint64_t nbytes) {
  return !host_copy_ || code_ ? code_
                              : copy(false, nbytes, true);  // alone: the calling thread progresses other
                                                            // tasks
}

int MessageBuffer::copy(bool to_host, uint64_t nbytes, bool alone) {
  Copies copies(to_host);
  const uint64_t n = std::min(nbytes, this->nbytes);
  const Word first = Word(place.data - host_copy_);
  if (!host_copy_) copies.ranges.push_back({lower_, nullptr, 0, gpu});
  else if (is_run()) copies.ranges.push_back({lower_ + first, host_copy_ + first, n, gpu});
  else if (to_host || !known) copies.ranges.push_back({lower_, host_copy_, stretch_, gpu});
  else copies.add(*place.layout, 0, 0, n, lower_ + first, host_copy_ + first, gpu);
  copies.begin(marks_);
  const int code = copies.wait(alone);
  lost_ = !copies.done();
  return code;
}

std::vector<uint8_t> MessageBuffer::packed() const {
  std::vector<uint8_t> bytes(nbytes);
  int position = 0;
  if (!known)
    pack.call(address, int(count), handle, bytes.data(), int(nbytes), &position, library().comm_self);
  else if (place.layout) gather(*place.layout, place.data, 0, nbytes, bytes.data());
  else if (nbytes) memcpy(bytes.data(), place.data, nbytes);
  return bytes;
}

void MessageBuffer::unpack(const uint8_t* bytes, uint64_t n) {
  if (!known) return unpack_by_mpi(bytes, n, address);
  if (place.layout) scatter(*place.layout, place.data, 0, n, bytes);
  else if (n) memcpy(place.data, bytes, n);
}

Range MessageBuffer::range(uint64_t n) const {
  if (on_device() || !nbytes) return {};
  if (is_run()) return {place.data, place.data + std::min(n, nbytes)};
  auto first = reinterpret_cast<uint8_t*>(lower_);
  return {first, first + stretch_};
}

void MessageBuffer::each_stretch(const uint8_t* bytes, uint64_t n, const Landing::Write& visit) const {
  if (is_run()) return visit(place.data, bytes, n);
  if (known) {
    engine::each_run(*place.layout, 0, 0, n,
                     [&](int64_t at, uint64_t nbytes, uint64_t count, int64_t stride) {
                       for (uint64_t i = 0; i < count; i++, at += stride, bytes += nbytes)
                         visit(place.data + at, bytes, nbytes);
                     });
    return;
  }
  // MPI unpacks the bytes into other memory, and ones into a mask of the places that it writes.
  std::vector<uint8_t> values(stretch_), written(stretch_);
  const Word offset = address - lower_;
  unpack_by_mpi(bytes, n, reinterpret_cast<Word>(values.data()) + offset);
  unpack_by_mpi(std::vector<uint8_t>(n, 1).data(), n, reinterpret_cast<Word>(written.data()) + offset);
  for (size_t i = 0; i < stretch_; i++)
    if (written[i]) visit(reinterpret_cast<uint8_t*>(lower_) + i, &values[i], 1);
}

// Unpacks by a message of this rank to itself, which may end within an entry.
void MessageBuffer::unpack_by_mpi(const uint8_t* bytes, uint64_t n, Word address) const {
  static std::mutex mutex;
  constexpr int tag = 2;
  std::lock_guard<std::mutex> lock(mutex);
  const Library& mpi = library();
  sendrecv.call(bytes, Word(n), mpi.byte, Word(0), Word(tag), address, Word(count), kept_, Word(0), Word(tag),
                self_comm(), mpi.ignored_status);
}

Word MessageBuffer::type_of_bytes() {
  if (!place.layout || make_type(*place.layout, &of_bytes_) || type_commit.call(&of_bytes_)) return 0;
  return library().handle_of(of_bytes_);
}

void MessageBuffer::keep_type() {
  if (known || kept_ || type_dup.call(handle, &kept_)) return;
  kept_ = library().handle_of(kept_);
}

}  // namespace layer
}  // namespace compcoll
