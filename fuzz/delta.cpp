// Differences to a base. Any bytes as an array and changes of it: they come back exactly, at all levels, from the
// same payload; damaged payloads, and any bytes as one, touch nothing but the buffers, and levels agree on them.
#include <cstring>

#include "harness.h"

using namespace fuzz;

namespace {

struct Changes {
  uint64_t state;
  uint64_t next() { return state ^= state << 13, state ^= state >> 7, state ^= state << 17; }
};

// A part of the bytes changed, most of them lower ones of their words, and by little.
void change(const Header& header, uint8_t* array, uint64_t nbytes) {
  Changes random = {header.extra | 1ull};
  const uint64_t every = uint64_t(1) << (header.params[0] & 15), all = header.params[0] & 16;
  for (uint64_t i = 0; i < nbytes; i++) {
    const uint64_t r = random.next();
    if (r % every == 0 && (all || i % 2 == 0)) array[i] = uint8_t(array[i] + int(r >> 20) % 3 - 1);
  }
}

const Codec& delta_at(const Level* level, int codec) { return *level->codecs[codec]; }

// At all chosen levels, apart from the base and in its place.
int64_t decode_at(const Header& header, int codec, Args args, Bytes payload, const Buffer& base,
                  Buffer& out) {
  int64_t answer = 1;
  Buffer input(payload.nbytes, header.flags & BYTE_OFFSET), other(args.nbytes());
  if (payload.nbytes) input.copy_from(payload.data);
  for (auto level : levels_for(header)) {
    args.base = base.data();
    const int64_t status = delta_at(level, codec).decode(&args, input.data(), payload.nbytes, out.data());
    require(status == 0 || status == BAD_STREAM, "a decoder takes a payload or does not");
    require(answer == 1 || answer == status, "levels agree on a payload");
    answer = status;
    if (args.nbytes()) other.copy_from(base.data());
    args.base = other.data();
    require(delta_at(level, codec).decode(&args, input.data(), payload.nbytes, other.data()) == status,
            "the base may be overwritten");
    require(status || !args.nbytes() || !memcmp(out.data(), other.data(), args.nbytes()),
            "with the same values");
  }
  (answer ? answers.not_decoded : answers.decoded)++;
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t nbytes) {
  Bytes values = {data, nbytes};
  Header header = take_header(values);
  header.flags &= ~(HUGE_SHAPE | PARAMS_AS_THEY_ARE);
  const int codec = codec_index(header);
  Args args = arguments(header);
  if (!itemsize(args.dtype)) return 0;
  Buffer base(args.nbytes()), array(args.nbytes()), out(args.nbytes());
  fill(header, args, values, base.data());
  args.params[0] = 1 | (header.params[0] >> 5 & 1) << 8;
  if (header.flags & FITTING) {
    decode_at(header, codec, args, values, base, out);
    return 0;
  }
  if (args.nbytes()) array.copy_from(base.data());
  change(header, array.data(), args.nbytes());
  std::vector<uint8_t> first;
  int64_t answer = 0;
  const auto& levels = levels_for(header);
  for (auto level : levels) {
    Args own = args;
    own.base = base.data();
    own.capacity = header.flags & SMALL_CAPACITY ? header.extra : args.nbytes();
    Buffer payload(own.capacity);
    const int64_t n = delta_at(level, codec).encode(&own, array.data(), payload.data());
    require(n <= int64_t(own.capacity), "a payload fits");
    require(n >= 0 || n == TOO_LARGE, "an encoder takes an array or does not");
    require(level == levels[0] || n == answer, "levels write equally many bytes");
    if (level == levels[0] && n > 0) first.assign(payload.data(), payload.data() + n);
    require(n <= 0 || !memcmp(first.data(), payload.data(), size_t(n)), "levels write the same bytes");
    answer = n;
    if (n >= 0) args.params[0] = own.params[0];
  }
  (answer < 0 ? answers.not_encoded : answers.encoded)++;
  if (answer < 0) return 0;
  require(decode_at(header, codec, args, {first.data(), first.size()}, base, out) == 0,
          "what was encoded can be decoded");
  require(!args.nbytes() || !memcmp(out.data(), array.data(), args.nbytes()), "no bit is changed");
  if (first.empty()) return 0;
  Changes random = {header.params[1] | 1};
  for (int i = 0; i < 3; i++) first[random.next() % first.size()] ^= uint8_t(random.next() >> 8);
  decode_at(header, codec, args, {first.data(), first.size()}, base, out);
  return 0;
}
