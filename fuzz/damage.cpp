// A sound payload with a few bytes changed, cut off or put in: it gets further into a decoder than bytes
// that were never a payload. The last bytes of an input say what is done.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "harness.h"

using namespace fuzz;

struct __attribute__((packed)) Damage {
  uint8_t kind, value;
  uint16_t at;
};

static void apply(const Damage& damage, std::vector<uint8_t>& payload) {
  if (payload.empty()) return;
  const size_t at = damage.at % payload.size();
  const uint8_t value = damage.value;
  switch (damage.kind % 8) {
    case 0: payload[at] ^= 1 << value % 8; break;
    case 1: payload[at] = value; break;
    case 2: payload.resize(at); break;
    case 3: payload.insert(payload.begin() + at, 1 + value % 8, value); break;
    case 4:
      payload.erase(payload.begin() + at, payload.begin() + std::min(payload.size(), at + 1 + value % 8));
      break;
    case 5: payload.resize(payload.size() + 1 + value % 64); break;
    case 6:  // the fields at the start of a payload, and of its chunks
      payload[at % std::min<size_t>(payload.size(), 64)] = value;
      break;
    case 7: payload[at] += value % 16 - 8; break;
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t nbytes) {
  Bytes rest = {data, nbytes};
  Header header = take_header(rest);
  Damage damages[4] = {};
  const uint64_t most = std::min<uint64_t>(std::size(damages), rest.nbytes / sizeof(Damage));
  const uint64_t count = most ? 1 + header.extra % most : 1;
  rest.nbytes -= most ? count * sizeof(Damage) : 0;
  if (most) memcpy(damages, rest.data + rest.nbytes, count * sizeof(Damage));
  header.flags &= ~(HUGE_SHAPE | PARAMS_AS_THEY_ARE | SMALL_CAPACITY | SLACK_CAPACITY);
  const int codec = codec_index(header);
  Args args = arguments(header);
  Buffer array(args.nbytes());
  fill(header, args, rest, array.data());
  static std::vector<uint8_t> payload, sound;
  if (encode(header, codec, args, {array.data(), array.nbytes()}, payload) < 0) return 0;
  sound = payload;
  for (uint64_t k = 0; k < count; k++) apply(damages[k], payload);
  const Bytes damaged = {payload.data(), payload.size()};
  decode_or_add(header, codec, args, damaged, damaged, {sound.data(), sound.size()});
  return 0;
}
