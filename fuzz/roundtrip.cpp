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

static void check_whole_array(const Args& args, const uint8_t* array) {
  const Level* first = all_levels()[0];
  std::vector<uint8_t> sums(args.size() * itemsize(args.acc_dtype), 0x3c);
  for (auto level : all_levels()) {
    require(level->checksum(array, args.nbytes()) == first->checksum(array, args.nbytes()),
            "checksums are the same at all levels");
    auto dst = sums;
    const bool known = itemsize(args.dtype);
    require(level->accumulate(args.dtype, args.acc_dtype, array, dst.data(), args.size()) == known,
            "accumulate takes every dtype, and no other");
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t nbytes) {
  Header header;
  Bytes values;
  if (!split({data, nbytes}, header, values)) return 0;
  header.flags &= ~HUGE_SHAPE;
  const int codec = codec_index(header);
  Args args = arguments(header);
  Buffer array(args.nbytes());
  fill(header, args, values, array.data());
  check_whole_array(args, array.data());
  int64_t status;
  const auto payload = encode_everywhere(header, codec, args, {array.data(), array.nbytes()}, status);
  if (status < 0) {
    const bool limited = header.flags & (PARAMS_AS_THEY_ARE | SMALL_CAPACITY | SLACK_CAPACITY);
    const bool taken = itemsize(args.dtype) && (is_float(args.dtype) || !is(codec, "float"));
    require(!is_lossless(codec) || limited || !taken, "lossless codecs take every array");
    return 0;
  }
  // A choice is not a stream, and what an encoder makes of unsound parameters need not be one.
  if (is(codec, "lossless") || header.flags & PARAMS_AS_THEY_ARE) return 0;
  const Bytes in = {payload.data(), payload.size()};
  require(decode_everywhere(header, codec, args, in) == 0, "what was encoded can be decoded");
  Buffer decoded(args.nbytes());
  levels()[0]->codecs[codec]->decode(&args, in.data, in.nbytes, decoded.data());
  if (!is_lossless(codec)) check_bound(args, array.data(), decoded.data());
  else if (args.nbytes())
    require(!memcmp(array.data(), decoded.data(), args.nbytes()), "lossless codecs change no bit");
  add_everywhere(header, codec, args, in, in);
  return 0;
}
