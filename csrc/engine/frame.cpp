#include "frame.h"

#include <cmath>
#include <cstring>

namespace compcoll {
namespace engine {
namespace {

enum Flags : uint8_t { CHECKSUM = 1, FALLBACK = 2 };

// The header's layout in memory. Little-endian, like every machine that this is built for.
struct Wire {
  char magic[4];
  uint8_t version, flags, dtype, ndim;
  uint64_t codec, params[2], shape[3], payload_nbytes;
  double bound;
  uint32_t checksum, own;
};
static_assert(sizeof(Wire) == HEADER_NBYTES, "the header has no gaps");

constexpr uint64_t OWN_OFFSET = 76;

bool are_dimensions_sound(const Wire& w) {
  for (unsigned i = w.ndim; i < 3; i++)
    if (w.shape[i] != 1) return false;
  return w.ndim <= 3;
}

bool is_size_sound(const Wire& w) {
  // Zero dimensions count as 1, because array libraries compute this product as well.
  unsigned __int128 nbytes = itemsize(w.dtype);
  for (uint64_t n : w.shape) {
    nbytes *= n ? n : 1;
    if (nbytes > INT64_MAX) return false;
  }
  return true;
}

Wire wire_of(const Header& h) {
  const auto flags = uint8_t((h.has_checksum ? CHECKSUM : 0) | (h.fallback ? FALLBACK : 0));
  return {{'C', 'C', 'F', '1'},
          1,
          flags,
          uint8_t(h.dtype),
          uint8_t(h.ndim),
          h.codec,
          {h.params[0], h.params[1]},
          {h.shape[0], h.shape[1], h.shape[2]},
          h.payload_nbytes,
          h.bound,
          h.checksum,
          0};
}

bool is_ascii(uint64_t name) { return !(name & 0x8080808080808080); }

}  // namespace

bool alike(const Header& a, const Header& b) {
  return a.codec == b.codec && a.dtype == b.dtype && !memcmp(a.shape, b.shape, sizeof a.shape) &&
         !memcmp(a.params, b.params, sizeof a.params);
}

uint64_t packed_name(const char* name) {
  uint64_t packed = 0;
  memcpy(&packed, name, strnlen(name, 8));
  return packed;
}

void pack(const Level& level, Header* header, uint8_t* frame) {
  Header& h = *header;
  h.checksum = h.has_checksum ? level.checksum(frame + HEADER_NBYTES, h.payload_nbytes) : 0;
  Wire w = wire_of(h);
  w.own = level.checksum(reinterpret_cast<uint8_t*>(&w), OWN_OFFSET);
  memcpy(frame, &w, sizeof w);
}

void outline(const Header& header, uint8_t* frame) {
  const Wire w = wire_of(header);
  memcpy(frame, &w, sizeof w);
}

Damage unpack(const Level& level, const uint8_t* frame, uint64_t available, Header* h) {
  Wire w;
  if (available < sizeof w) return Damage::SHORT;
  memcpy(&w, frame, sizeof w);
  *h = {w.codec,
        w.dtype,
        w.ndim,
        {w.shape[0], w.shape[1], w.shape[2]},
        {w.params[0], w.params[1]},
        w.payload_nbytes,
        w.bound,
        w.checksum,
        bool(w.flags & CHECKSUM),
        bool(w.flags & FALLBACK)};
  if (memcmp(w.magic, "CCF1", 4)) return Damage::MAGIC;
  if (w.own != level.checksum(frame, OWN_OFFSET)) return Damage::OWN_CHECKSUM;
  if (w.version != 1) return Damage::VERSION;
  if (!itemsize(w.dtype) || !is_ascii(w.codec)) return Damage::TYPE;
  if (!are_dimensions_sound(w)) return Damage::DIMENSIONS;
  if (!is_size_sound(w)) return Damage::SIZE;
  if (w.payload_nbytes > h->nbytes()) return Damage::PAYLOAD;
  if (available < sizeof w + w.payload_nbytes) return Damage::TRUNCATED;
  if (!(w.bound >= 0) && !std::isnan(w.bound)) return Damage::BOUND;
  return Damage::NONE;
}

}  // namespace engine
}  // namespace compcoll
