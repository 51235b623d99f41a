// Shared by the files that implement device.h: blocks and frames on devices, and the memory of launches.
#pragma once
#include "../lossless.h"
#include "device.h"

namespace compcoll {
namespace engine {

// Rounds up to the alignment of frames and scratch memory.
inline uint64_t rounded(uint64_t nbytes) { return (nbytes + 127) / 128 * 128; }

// Kernels access the frames of blocks of at most this size directly in pinned memory, which saves a copy.
// Larger frames are copied, so that multiprocessors do not wait for the bus.
constexpr uint64_t most_mapped = 1 << 20;

inline Address address_of(const Span& block) { return reinterpret_cast<Address>(block.data); }

inline uint64_t reals(const Span& block) { return block.n * (is_complex(block.dtype) ? 2 : 1); }
inline uint64_t reals(const Header& h) { return h.size() * (is_complex(h.dtype) ? 2 : 1); }
inline bool is_aligned(const Span& block) { return address_of(block) % real_nbytes(block.dtype) == 0; }

// A largest magnitude, from the bits that its kernel writes.
inline double magnitude(uint32_t dtype, uint64_t bits, const Level& level) {
  return level.largest(dtype, &bits, 1);
}

// Sample by which a block's lossless codec is chosen.
inline LosslessSample sample_of(const Span& block) {
  return {block.nbytes(), real_nbytes(block.dtype) == 8 ? 8u : 4u};
}

// The `raw` codec's name as it is stored in headers.
inline uint64_t raw_name() { return packed_name("raw"); }

// True if a frame is in host memory that asynchronous copies can use.
inline bool is_pinned(const Frame& frame) {
  return !frame.gpu && ((frame.allocator == &pinned() && !frame.lent) || pinned().has_added(frame.memory));
}

// True if a frame on the host holds the raw values without a checksum, so there is nothing to verify.
inline bool is_plain(const Frame& frame) {
  return !frame.gpu && frame.header.codec == raw_name() && !frame.header.has_checksum;
}

// True if a GPU's kernels read a frame's payload in place.
inline bool is_in_place(const Frame& frame, const Gpu* gpu) {
  return frame.gpu == gpu && (reinterpret_cast<Address>(frame.memory) + HEADER_NBYTES) % 16 == 0;
}

}  // namespace engine
}  // namespace compcoll
