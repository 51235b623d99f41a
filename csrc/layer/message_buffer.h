// Buffers of messages: the program's memory, its copy on the host, and packing.
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

// The send or receive buffer of a message.
class MessageBuffer {
 public:
  // `sent`: true for a send buffer.
  MessageBuffer(Word address, int64_t count, Word type, bool sent);
  // Owns packed bytes, with the element type and shape of `like`.
  MessageBuffer(std::vector<uint8_t> bytes, const MessageBuffer& like);
  ~MessageBuffer();
  MessageBuffer(const MessageBuffer&) = delete;

  bool sound() const { return type_ != nullptr; }  // else MPI reports the error
  const Type& type() const { return *type_; }  // valid until the program frees it
  Word address = 0, handle = 0;  // passed to MPI
  int64_t count = 0;
  uint64_t nbytes = 0;
  uint32_t element = 0;
  bool known = true;  // true if the layout of the bytes is known
  int gpu = engine::NO_GPU;
  bool on_device() const { return gpu != engine::NO_GPU; }
  // True if MPI gets the GPU's memory, and no copy on the host.
  bool is_on_gpu() const { return on_device() && !host_copy_; }
  // MPI's error code if a stream of the GPU is being captured, so that the call cannot use the memory; else
  // 0.
  int refused() const { return refused_ ? code_ : 0; }
  engine::Place place{nullptr};
  std::vector<uint64_t> shape;

  bool is_run() const { return known && !place.layout; }
  // Gives MPI a copy on the host in place of a GPU's memory.
  void use_host_copy();
  // Copy between the GPU and the host copy, after work that the program has started on the GPU; MPI's error
  // code. Without a host copy, `copy_to_host` only waits for that work.
  int copy_to_host();
  int copy_to_device(uint64_t nbytes);
  static constexpr uint64_t all = ~uint64_t(0);
  // Place of the bytes if they are contiguous on a GPU; `marks` holds the events that work on them waits for.
  engine::Place on_gpu{nullptr};
  const MarksRef& marks() const { return marks_; }
  // Packs all bytes, or unpacks the first `n`.
  std::vector<uint8_t> packed() const;
  void unpack(const uint8_t* bytes, uint64_t n);
  // Calls `write` with each stretch of memory where `n` bytes belong, in order.
  void each_stretch(const uint8_t* bytes, uint64_t n, const Landing::Write& write) const;
  // The range of host memory where `n` bytes of a message lie; empty on a GPU.
  Range range(uint64_t n) const;
  // A committed datatype of the layout's bytes; 0 if MPI cannot make one.
  Word type_of_bytes();
  // Duplicates a datatype whose layout is unknown: MPI unpacks with it, after the program may have freed it.
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
  Word lower_ = 0;  // address of the first byte in the program's memory
  uint64_t stretch_ = 0;  // bytes from the first to the last
  bool lost_ = false;  // a GPU may still access the host copy, so it is not freed
  MarksRef marks_;
  int code_ = 0;
  bool refused_ = false;
};

using MessageBufferRef = std::shared_ptr<MessageBuffer>;

}  // namespace layer
}  // namespace compcoll
