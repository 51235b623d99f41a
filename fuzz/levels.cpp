// The codecs at every level that is asked for, into memory of the exact size: all levels agree.
#include "harness.h"

#include <algorithm>
#include <cstring>

namespace fuzz {

static const Codec* codec_at(int codec) { return levels()[0]->codecs[codec]; }

// Equal bits, or NaN in both: whose bits a sum of two NaNs has is the compiler's choice.
template <class T>
static bool equal_sums(const uint8_t* a, const uint8_t* b, uint64_t nbytes) {
  for (uint64_t i = 0; i < nbytes; i += sizeof(T)) {
    T x, y;
    memcpy(&x, a + i, sizeof x);
    memcpy(&y, b + i, sizeof y);
    if (memcmp(&x, &y, sizeof x) && !(x != x && y != y)) return false;
  }
  return true;
}

static bool equal_sums(uint32_t dtype, const Buffer& a, const Buffer& b) {
  const uint64_t n = a.nbytes();
  if (dtype == FLOAT32 || dtype == COMPLEX64) return equal_sums<float>(a.data(), b.data(), n);
  if (dtype == FLOAT64 || dtype == COMPLEX128) return equal_sums<double>(a.data(), b.data(), n);
  return !n || !memcmp(a.data(), b.data(), n);
}

// At every level that is asked for into a buffer of `nbytes`: `run` answers the same at all, and where this
// is 0, `equal` is true of any two buffers.
template <class Run, class Equal>
static int64_t compare_levels(const Header& h, uint64_t nbytes, uint8_t* result, Run run, Equal equal) {
  const auto& chosen = levels_for(h);
  const bool odd = h.flags & BYTE_OFFSET;
  Buffer first(nbytes, odd);
  const int64_t status = run(chosen[0], first);
  require(status <= 0, "decoders answer 0 or a negative status");
  for (size_t i = 1; i < chosen.size(); i++) {
    Buffer dst(nbytes, odd);
    require(run(chosen[i], dst) == status, "decoders answer the same at all levels");
    if (!status && !dst.huge()) require(equal(first, dst), "decoders give the same at all levels");
  }
  (status ? answers.not_decoded : answers.decoded)++;
  if (!status && result && !first.huge()) memcpy(result, first.data(), nbytes);
  return status;
}

static int64_t decode_only(const Header& h, int codec, const Args& args, const Buffer& in, uint8_t* result) {
  auto equal = [](const Buffer& a, const Buffer& b) { return !memcmp(a.data(), b.data(), a.nbytes()); };
  auto run = [&](const Level* level, const Buffer& dst) {
    const Codec* kernels = level->codecs[codec];
    const int64_t status = kernels->decode(&args, in.data(), in.nbytes(), dst.data());
    Args past = args;
    past.past_cache = true;
    const Buffer other(args.nbytes(), h.flags & BYTE_OFFSET);
    require(kernels->decode(&past, in.data(), in.nbytes(), other.data()) == status,
            "decoders answer the same past the cache");
    if (!status && !dst.huge()) require(equal(dst, other), "decoders give the same past the cache");
    return status;
  };
  return compare_levels(h, args.nbytes(), result, run, equal);
}

static int64_t decode_add(const Header& h, int codec, const Args& args, const Buffer& in) {
  Args wide = args;
  wide.dtype = args.acc_dtype;
  auto run = [&](const Level* level, const Buffer& dst) {
    dst.clear(0x3c);
    return level->codecs[codec]->decode_add(&args, in.data(), in.nbytes(), dst.data());
  };
  auto equal = [&](const Buffer& a, const Buffer& b) { return equal_sums(wide.dtype, a, b); };
  return compare_levels(h, wide.nbytes(), nullptr, run, equal);
}

int64_t decode(const Header& h, int codec, const Args& args, Bytes payload, uint8_t* result) {
  Buffer in(payload.nbytes, h.flags & BYTE_OFFSET);
  in.copy_from(payload.data);
  const bool has_add = codec_at(codec)->decode_add, one = levels_for(h).size() == 1;
  if (has_add && one && !result && h.flags & DECODE_ADD) return decode_add(h, codec, args, in);
  const int64_t status = decode_only(h, codec, args, in, result);
  if (has_add && !one)
    require((decode_add(h, codec, args, in) == 0) == (status == 0) || !itemsize(args.dtype),
            "decode_add takes what decode takes");
  return status;
}

static uint64_t capacity(const Header& h, const Args& args) {
  if (h.flags & SMALL_CAPACITY) return h.extra;
  // Room for streams that are longer than what they stand for.
  return args.nbytes() + (h.flags & SLACK_CAPACITY ? 64 : args.nbytes() / 4 + 4096);
}

// Runs `run(level, args, dst)` at every level that is asked for: all agree in what they answer, in the
// arguments and in the bytes, which `payload` gets.
template <class Run>
static int64_t compare_payloads(const Header& h, Args& args, std::vector<uint8_t>& payload, Run run) {
  const Args given = args;
  const auto& chosen = levels_for(h);
  int64_t first = 0;
  for (auto level : chosen) {
    Args own = given;
    own.capacity = capacity(h, given);
    Buffer dst(own.capacity, h.flags & BYTE_OFFSET);
    const int64_t n = run(level, own, dst.data());
    require(n <= int64_t(own.capacity), "a payload is not longer than the capacity");
    if (level == chosen[0]) {
      first = n;
      args = own;
      payload.assign(dst.data(), dst.data() + std::max<int64_t>(n, 0));
      continue;
    }
    require(n == first, "all levels answer the same");
    require(n < 0 || !memcmp(&args, &own, sizeof own), "all levels give the same arguments");
    require(n <= 0 || !memcmp(payload.data(), dst.data(), n), "all levels give the same bytes");
  }
  (first < 0 ? answers.not_encoded : answers.encoded)++;
  return first;
}

void add(const Header& h, int codec, const Args& given, Bytes a, Bytes b) {
  if (!codec_at(codec)->add || given.nbytes() > heap_nbytes) return;
  static std::vector<uint8_t> sum;
  const bool odd = h.flags & BYTE_OFFSET;
  Args args = given;
  int64_t status;
  {
    Buffer one(a.nbytes, odd), two(b.nbytes, odd);
    one.copy_from(a.data);
    two.copy_from(b.data);
    status = compare_payloads(h, args, sum, [&](const Level* level, Args& own, uint8_t* dst) {
      return level->codecs[codec]->add(&own, one.data(), a.nbytes, two.data(), b.nbytes, dst);
    });
  }
  if (status >= 0) require(!decode(h, codec, args, {sum.data(), sum.size()}), "sums can be decoded");
}

void decode_or_add(const Header& h, int codec, const Args& args, Bytes payload, Bytes a, Bytes b) {
  const bool both = levels_for(h).size() > 1, only_add = !both && h.flags & ADD && codec_at(codec)->add;
  if (!only_add) decode(h, codec, args, payload);
  if (both || only_add) add(h, codec, args, a, b);
}

int64_t encode(const Header& h, int codec, Args& args, Bytes array, std::vector<uint8_t>& payload) {
  Buffer src(array.nbytes, h.flags & BYTE_OFFSET);
  src.copy_from(array.data);
  return compare_payloads(h, args, payload, [&](const Level* level, Args& own, uint8_t* dst) {
    return level->codecs[codec]->encode(&own, src.data(), dst);
  });
}

// Into `values`, which may be the array.
static void check_reconstruct(const Header& h, const Codec* codec, const Args& given, const Encoded& expected,
                              const Buffer& src, const Buffer& values) {
  Args args = given;
  args.capacity = capacity(h, given);
  Buffer dst(args.capacity, h.flags & BYTE_OFFSET);
  args.past_cache = h.extra & 1;
  const int64_t status = codec->reconstruct(&args, src.data(), dst.data(), values.data());
  args.past_cache = false;
  if (status == UNSUPPORTED) return;
  require(status == expected.status, "reconstruct answers what encode does");
  if (status < 0) return;
  require(!memcmp(&args, &expected.args, sizeof args), "reconstruct gives the arguments that encode does");
  const bool same = !status || !memcmp(dst.data(), expected.payload.data, status);
  require(same, "reconstruct encodes as encode does");
  require(!expected.decoded || !values.nbytes() || !memcmp(values.data(), expected.decoded, values.nbytes()),
          "reconstruct gives what decode does");
}

void reconstruct(const Header& h, int codec, const Args& given, Bytes array, const Encoded& expected) {
  if (!codec_at(codec)->reconstruct) return;
  const bool odd = h.flags & BYTE_OFFSET;
  Buffer src(array.nbytes, odd), values(array.nbytes, odd);
  for (auto level : levels_for(h)) {
    const Codec* kernels = level->codecs[codec];
    for (const Buffer* to : {&values, &src}) {
      src.copy_from(array.data);
      check_reconstruct(h, kernels, given, expected, src, *to);
      const bool changes = to == &src && expected.status >= 0;
      require(changes || !array.nbytes || !memcmp(src.data(), array.data, array.nbytes),
              "reconstruct leaves the array as it is");
    }
  }
}

}  // namespace fuzz
