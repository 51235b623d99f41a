// The memory of a message: where it lies, its copy on the host, and its bytes in a row.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "devices.h"
#include "landing.h"

namespace compcoll {
namespace layer {

// The range of memory from the first to the last byte of `count` entries.
Range stretch_of(Word address, int64_t count, Word type);

// A program's memory that is sent from or received into.
class MessageBuffer {
 public:
  // `sent`: or to be received into.
  MessageBuffer(Word address, int64_t count, Word type, bool sent);
  // Bytes of one's own, of elements of a type.
  MessageBuffer(std::vector<uint8_t> bytes, const MessageBuffer& like);
  ~MessageBuffer();
  MessageBuffer(const MessageBuffer&) = delete;

  bool sound() const { return type_ != nullptr; }  // else MPI has something to say
  const Type& type() const { return *type_; }  // while the program has not freed it
  Word address = 0, handle = 0;  // as MPI is to have them
  int64_t count = 0;
  uint64_t nbytes = 0;
  uint32_t element = 0;
  bool known = true;  // whether it is known where its bytes lie
  int gpu = engine::NO_GPU;
  bool on_device() const { return gpu != engine::NO_GPU; }
  // Whether they lie there for MPI too.
  bool is_on_gpu() const { return on_device() && !host_copy_; }
  // MPI's code of memory that the call cannot use: a stream of its GPU is being captured.
  int refused() const { return refused_ ? code_ : 0; }
  engine::Place place{nullptr};
  std::vector<uint64_t> shape;

  bool is_run() const { return known && !place.layout; }
  // Has memory of a GPU that MPI is not to see stand for by a copy on the host.
  void use_host_copy();
  // Copies it from the memory of a GPU, behind what the program had started there, and so many bytes back;
  // MPI's code. Without a mirror what the program had started is waited for alone.
  int copy_to_host();
  int copy_to_device(uint64_t nbytes);
  static constexpr uint64_t all = ~uint64_t(0);
  // Where its bytes lie on a GPU, side by side, and what comes before all work on them.
  engine::Place on_gpu{nullptr};
  const MarksRef& marks() const { return marks_; }
  // The bytes one behind the other; and the opposite, of so many.
  std::vector<uint8_t> packed() const;
  void unpack(const uint8_t* bytes, uint64_t n);
  // Calls `write` with each stretch of memory where `n` bytes belong, in order.
  void each_stretch(const uint8_t* bytes, uint64_t n, const Landing::Write& write) const;
  // The range of host memory where `n` bytes of a message lie; empty on a GPU.
  Range range(uint64_t n) const;
  // A committed datatype with the places of the layout's bytes; 0 if MPI cannot make one.
  Word type_of_bytes();
  // Has memory of its own if it is not known where the bytes lie: frames are decoded there.
  void keep_type();

 private:
  void unpack_by_mpi(const uint8_t* bytes, uint64_t n, Word address) const;

  const Type* type_ = nullptr;
  Word kept_ = 0;  // a duplicate of a datatype that the program may free
  Word of_bytes_ = 0;
  std::vector<uint8_t> bytes_;
  uint8_t* host_copy_ = nullptr;
  int copy(bool to_host, uint64_t nbytes, bool alone);

  const bool sent_;
  Word lower_ = 0;  // of the first byte, on the GPU
  uint64_t stretch_ = 0;  // of all of them
  bool lost_ = false;  // a GPU may still use the mirror, which is kept
  MarksRef marks_;
  int code_ = 0;
  bool refused_ = false;
};

using MessageBufferRef = std::shared_ptr<MessageBuffer>;

}  // namespace layer
}  // namespace compcoll
