// The raw codec: bytes unchanged.
#include <cstring>

#include "../accumulate.h"
#include "past_cache.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {

static int64_t encode(Args* args, const void* src, void* dst) {
  uint64_t nbytes = args->nbytes();
  if (nbytes > args->capacity) return TOO_LARGE;
  if (nbytes) memcpy(dst, src, nbytes);
  args->bound = 0;
  return nbytes;
}

static int64_t decode(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  if (nbytes != args->nbytes()) return BAD_STREAM;
  if (args->past_cache) {
    copy_past_cache(static_cast<char*>(dst), static_cast<const char*>(payload), nbytes);
    written_past_cache();
  } else if (nbytes) {
    memcpy(dst, payload, nbytes);
  }
  return 0;
}

static int64_t decode_add(const Args* args, const void* payload, uint64_t nbytes, void* dst) {
  if (nbytes != args->nbytes()) return BAD_STREAM;
  return accumulate(args->dtype, args->acc_dtype, payload, dst, args->size()) ? 0 : UNSUPPORTED;
}

extern const Codec raw_codec = {"raw", encode, decode, decode_add, nullptr};

}  // namespace CC_LEVEL
}  // namespace compcoll
