// Any bytes as an array: what is encoded comes back, exactly or within the bound that the encoder answers.
#include <cmath>
#include <cstring>

#include "accumulate.h"
#include "harness.h"

using namespace fuzz;

static long double real_at(uint32_t dtype, const uint8_t* p, uint64_t i) {
  uint16_t h;
  float f;
  double d;
  switch (dtype) {
    case FLOAT16: return memcpy(&h, p + 2 * i, 2), CC_LEVEL::float16_to_float(h);
    case BFLOAT16: return memcpy(&h, p + 2 * i, 2), CC_LEVEL::bfloat16_to_float(h);
    case FLOAT32:
    case COMPLEX64: return memcpy(&f, p + 4 * i, 4), f;
    default: return memcpy(&d, p + 8 * i, 8), d;
  }
}

// Rounding to long double is monotonic: it carries no error past a bound that is a double.
static void check_bound(const Args& args, const uint8_t* array, const uint8_t* decoded) {
  const bool complex = args.dtype >= COMPLEX64;
  const uint64_t width = itemsize(args.dtype) / (complex ? 2 : 1);
  if (std::isnan(args.bound)) return;
  require(args.bound >= 0, "a bound is not negative");
  for (uint64_t i = 0; i < args.nbytes() / width; i++) {
    const long double x = real_at(args.dtype, array, i), y = real_at(args.dtype, decoded, i);
    if (std::isfinite(x)) require(std::fabs(x - y) <= args.bound, "errors keep the bound");
    else require(!memcmp(array + i * width, decoded + i * width, width), "what is not finite is not changed");
  }
}

static void check_whole_array(const Header& header, const Args& args, const uint8_t* array) {
  const auto& chosen = levels_for(header);
  Buffer sums(args.size() * itemsize(args.acc_dtype));
  sums.clear(0x3c);
  for (auto level : chosen) {
    require(level->checksum(array, args.nbytes()) == chosen[0]->checksum(array, args.nbytes()),
            "checksums are the same at all levels");
    const bool known = itemsize(args.dtype);
    require(level->accumulate(args.dtype, args.acc_dtype, array, sums.data(), args.size()) == known,
            "accumulate takes every dtype, and no other");
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t nbytes) {
  Bytes values = {data, nbytes};
  Header header = take_header(values);
  const bool everything = levels_for(header).size() > 1, again = everything || header.flags & RECONSTRUCT;
  header.flags &= ~HUGE_SHAPE;
  int codec = codec_index(header);
  const Args given = arguments(header);
  Args args = given;
  Buffer array(args.nbytes());
  fill(header, args, values, array.data());
  if (everything || header.flags & DECODE_ADD) check_whole_array(header, args, array.data());
  static std::vector<uint8_t> payload;
  const Bytes src = {array.data(), array.nbytes()};
  const int64_t status = encode(header, codec, args, src, payload);
  if (status < 0) {
    if (again) reconstruct(header, codec, given, src, {status, args, {}, nullptr});
    const bool limited = header.flags & (PARAMS_AS_THEY_ARE | SMALL_CAPACITY | SLACK_CAPACITY);
    const bool taken = itemsize(args.dtype) && (is_float(args.dtype) || !is(codec, "float"));
    require(!is_lossless(codec) || limited || !taken, "lossless codecs take every array");
    return 0;
  }
  if (is(codec, "lossless")) {  // a choice, not a payload
    codec = chosen_codec(args.params[0]);
    args.params[0] = args.params[1];
    args.params[1] = 0;
    if (encode(header, codec, args, src, payload) < 0) return 0;
  } else if (header.flags & PARAMS_AS_THEY_ARE) {
    const Bytes in = {payload.data(), payload.size()};
    if (again) reconstruct(header, codec, given, src, {status, args, in, nullptr});
    return 0;  // what an encoder makes of unsound parameters need not be a payload
  }
  const Bytes in = {payload.data(), payload.size()};
  Buffer decoded(args.nbytes());
  require(decode(header, codec, args, in, decoded.data()) == 0, "what was encoded can be decoded");
  if (!is_lossless(codec)) check_bound(args, array.data(), decoded.data());
  else if (args.nbytes())
    require(!memcmp(array.data(), decoded.data(), args.nbytes()), "lossless codecs change no bit");
  if (again && codec == codec_index(header))
    reconstruct(header, codec, given, src, {status, args, in, decoded.data()});
  if (everything || header.flags & ADD) add(header, codec, args, in, in);
  return 0;
}
