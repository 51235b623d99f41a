// A sound payload with a few bytes changed, cut off or put in: it gets further into a decoder than bytes
// that were never a payload. The last bytes of an input say what is done.
#include <cstring>

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
  Header header;
  Bytes rest;
  if (!split({data, nbytes}, header, rest) || rest.nbytes < 1 + sizeof(Damage)) return 0;
  const size_t count =
      1 + rest.data[rest.nbytes - 1] % std::min<size_t>(4, (rest.nbytes - 1) / sizeof(Damage));
  rest.nbytes -= 1 + count * sizeof(Damage);
  header.flags &= ~(HUGE_SHAPE | PARAMS_AS_THEY_ARE | SMALL_CAPACITY | SLACK_CAPACITY);
  const int codec = codec_index(header);
  Args args = arguments(header);
  Buffer array(args.nbytes());
  fill(header, args, rest, array.data());
  int64_t status;
  auto payload = encode_everywhere(header, codec, args, {array.data(), array.nbytes()}, status);
  if (status < 0) return 0;
  const auto sound = payload;
  for (size_t k = 0; k < count; k++) {
    Damage damage;
    memcpy(&damage, rest.data + rest.nbytes + k * sizeof damage, sizeof damage);
    apply(damage, payload);
  }
  decode_everywhere(header, codec, args, {payload.data(), payload.size()});
  add_everywhere(header, codec, args, {payload.data(), payload.size()}, {sound.data(), sound.size()});
  return 0;
}
