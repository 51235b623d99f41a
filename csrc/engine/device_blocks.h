// What the parts of device.h share: blocks and frames of devices, and the memory of launches.
#pragma once
#include "../lossless.h"
#include "device.h"

namespace compcoll {
namespace engine {

// Multiples of which frames and scratch memory begin at.
inline uint64_t rounded(uint64_t nbytes) { return (nbytes + 127) / 128 * 128; }

// Kernels write and read the frames of blocks of so many bytes at most in pinned memory, which saves a copy; those
// of larger ones are copied, so that multiprocessors do not wait for the bus.
constexpr uint64_t most_mapped = 1 << 20;

inline Address address_of(const Span& block) { return reinterpret_cast<Address>(block.data); }

inline uint64_t reals(const Span& block) { return block.n * (is_complex(block.dtype) ? 2 : 1); }
inline uint64_t reals(const Header& h) { return h.size() * (is_complex(h.dtype) ? 2 : 1); }
inline bool is_aligned(const Span& block) { return address_of(block) % real_nbytes(block.dtype) == 0; }

// A largest magnitude as its kernel leaves it.
inline double magnitude(uint32_t dtype, uint64_t bits, const Level& level) {
  return level.largest(dtype, &bits, 1);
}

// The values by which a block's lossless codec is chosen.
inline LosslessSample sample_of(const Span& block) {
  return {block.nbytes(), real_nbytes(block.dtype) == 8 ? 8u : 4u};
}

// The codec of bytes as they are, as it stands in headers.
inline uint64_t raw_name() { return packed_name("raw"); }

// True if a frame lies in memory of the host that copies do not have it wait for.
inline bool is_pinned(const Frame& frame) {
  return !frame.gpu && ((frame.allocator == &pinned() && !frame.lent) || pinned().has_added(frame.memory));
}

// True if a frame on the host is the values' bytes, of which nothing has to be checked.
inline bool is_plain(const Frame& frame) {
  return !frame.gpu && frame.header.codec == raw_name() && !frame.header.has_checksum;
}

// Whether kernels of a GPU read a frame's payload where it lies.
inline bool is_in_place(const Frame& frame, const Gpu* gpu) {
  return frame.gpu == gpu && (reinterpret_cast<Address>(frame.memory) + HEADER_NBYTES) % 16 == 0;
}

}  // namespace engine
}  // namespace compcoll
