// Memory that is written once and not read soon: whole cache lines are stored past the cache, so that none is
// first read from memory.
#pragma once
#include <cstring>

#include "../lanes.h"
#include "prefetch.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace compcoll {
namespace CC_LEVEL {

constexpr uint64_t cache_line = 64;

// Stores a line at a multiple of 64.
inline void stream_line(char* to, const char* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX2__)
  for (int i = 0; i < 64; i += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
#elif defined(__SSE2__)
  for (int i = 0; i < 64; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
#else
  memcpy(to, from, cache_line);
#endif
}

// Copies to any address. `written_past_cache` must be called before another thread is told of the bytes.
inline void copy_past_cache(char* to, const char* from, uint64_t nbytes) {
  const uint64_t ahead = -reinterpret_cast<uintptr_t>(to) % cache_line,
                 head = ahead < nbytes ? ahead : nbytes;
  memcpy(to, from, head);
  uint64_t i = head;
  for (; i + cache_line <= nbytes; i += cache_line) {
    fetch_ahead<false>(from + i, cache_line);
    stream_line(to + i, from + i);
  }
  memcpy(to + i, from + i, nbytes - i);
}

// Pieces of memory that are made one after another. Each piece is copied while the next one is made: by then
// it is in the cache, and no load waits for a store.
template <uint64_t piece>
class PastCache {
 public:
  explicit PastCache(char* to) : to_(to), next_(-reinterpret_cast<uintptr_t>(to) % cache_line) {}

  // Memory for the next piece.
  char* room() { return pieces_ + made_ % (2 * piece); }
  // The first `nbytes` of the current piece are made.
  void until(uint64_t nbytes) { copy(made_ + nbytes < piece ? 0 : made_ + nbytes - piece); }
  // The current piece is complete, or is the last one.
  void made(uint64_t nbytes) {
    if (room() == pieces_) {
      if (made_ == 0) memcpy(to_, pieces_, next_ < nbytes ? next_ : nbytes);
      memcpy(pieces_ + 2 * piece, pieces_, cache_line);  // a line may cross the end
    }
    made_ += nbytes;
  }
  void finish() {
    copy(made_);
    if (next_ < made_) memcpy(to_ + next_, pieces_ + next_ % (2 * piece), made_ - next_);
  }

 private:
  void copy(uint64_t end) {
    for (; next_ + cache_line <= end; next_ += cache_line)
      stream_line(to_ + next_, pieces_ + next_ % (2 * piece));
  }

  char* to_;
  uint64_t next_;  // line to be copied, from `to_`
  uint64_t made_ = 0;
  alignas(64) char pieces_[2 * piece + cache_line];
};

inline void written_past_cache() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace CC_LEVEL
}  // namespace compcoll
