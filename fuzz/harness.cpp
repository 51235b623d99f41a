#include "harness.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace fuzz {

static const Codec* const* table() { return levels()[0]->codecs; }

static std::vector<int> family;  // positions in the table; set once, from the command line

static int index_of(const std::string& name) {
  for (int i = 0; table()[i]; i++)
    if (table()[i]->name == name) return i;
  fprintf(stderr, "there is no codec %s\n", name.c_str());
  exit(2);
}

static bool always_all_levels = false;

// What the codecs answered, each counted once for all levels: whether inputs get anywhere.
static struct {
  unsigned long long encoded, not_encoded, decoded, not_decoded;
} answers;

static void print_answers() {
  fprintf(stderr, "stat::encoded: %llu of %llu\n", answers.encoded, answers.encoded + answers.not_encoded);
  fprintf(stderr, "stat::decoded: %llu of %llu\n", answers.decoded, answers.decoded + answers.not_decoded);
}

// --codec=name,name: the codecs that this run is about; all of them without it. --levels=all.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string option = "--codec=";
  for (int i = 1; i < *argc; i++) {
    std::string names = (*argv)[i];
    always_all_levels |= names == "--levels=all";
    if (names.compare(0, option.size(), option)) continue;
    names = names.substr(option.size()) + ",";
    for (size_t at = 0, end; (end = names.find(',', at)) != names.npos; at = end + 1)
      family.push_back(index_of(names.substr(at, end - at)));
  }
  if (family.empty())
    for (int i = 0; table()[i]; i++) family.push_back(i);
  atexit(print_answers);
  return 0;
}

void require(bool kept, const char* promise) {
  if (kept) return;
  fprintf(stderr, "== a promise is not kept: %s\n", promise);
  abort();
}

Header take_header(Bytes& input) {
  Header header = {};
  const uint64_t n = std::min<uint64_t>(input.nbytes, sizeof header);
  if (n) memcpy(&header, input.data, n);
  input = {input.data + n, input.nbytes - n};
  return header;
}

int codec_index(const Header& header) { return family[header.codec % family.size()]; }

bool is_float(uint32_t dtype) { return dtype >= FLOAT16; }

const char* name_of(int codec) { return table()[codec]->name; }

bool is(int codec, const char* name) { return !strcmp(name_of(codec), name); }

static bool is_blockscale(int codec) { return is(codec, "int8") || is(codec, "int4") || is(codec, "fp8"); }

bool is_lossless(int codec) { return is(codec, "raw") || is(codec, "mpc") || is(codec, "float"); }

bool has_fixed_size(int codec) { return is(codec, "raw") || is(codec, "zfp") || is_blockscale(codec); }

int chosen_codec(uint64_t ordinal) {
  static const int codecs[] = {index_of("raw"), index_of("mpc"), index_of("float")};
  require(ordinal < 3, "the choice is one of three");
  return codecs[ordinal];
}

// Small arrays far more often than large ones, up to 5119 elements, and 0.
static uint64_t extent(uint16_t s, uint32_t ndim) {
  if (ndim == 1) return (s & 0x1fff) % (40u << (s >> 13));
  if (ndim == 2) return (s & 0x3fff) % (9u << (s >> 14));
  return (s & 0x3fff) % (5u + 4 * (s >> 14));
}

static uint64_t huge_extent(uint16_t s) { return uint64_t(s % 8 + 1) << (s >> 8) % 17; }

// From 2^-40 to 2^15; such a bound stays as it is.
static uint64_t usual_bound(uint64_t bits) {
  const uint64_t exponent = bits << 1 >> 53, least = 1023 - 40, count = 56;
  const bool usual = exponent >= least && exponent < least + count && !(bits >> 63);
  return usual ? bits : bits << 12 >> 12 | (least + exponent % count) << 52;
}

static void choose_params(const Header& h, int codec, const Args& args, uint64_t* params) {
  params[0] = h.params[0];
  params[1] = h.params[1];
  if (h.flags & PARAMS_AS_THEY_ARE) return;
  if (is(codec, "zfp")) {
    const bool wide = args.dtype == FLOAT64 || args.dtype == COMPLEX128;
    const uint64_t least = wide ? 12 : 9, most = (wide ? 64u : 32u) << 2 * args.ndim;
    params[0] = least + h.params[0] % (most - least + 1);
    params[1] = 0;
  } else if (is(codec, "mpc") || is(codec, "float")) {
    params[0] = is(codec, "mpc") ? 1 + h.params[0] % 32 : 1;
    params[1] = 0;
  } else if (is(codec, "szp")) {  // an absolute bound, or a relative one in the other word
    const int which = h.params[0] ? 0 : 1;
    params[1 - which] = 0;
    params[which] = usual_bound(h.params[which]);
  } else if (is_blockscale(codec)) {
    params[0] = uint64_t(32) << h.params[0] % 4 | (h.params[0] >> 8 & 1) << 32;
  }
}

Args arguments(const Header& h) {
  const int codec = codec_index(h);
  Args args = {};
  args.dtype = h.dtype & 15;
  const bool any_type = is(codec, "raw") || is(codec, "mpc") || is(codec, "lossless");
  if (!any_type && !is_float(args.dtype) && !(h.flags & PARAMS_AS_THEY_ARE))
    args.dtype = FLOAT16 + args.dtype % 6;
  args.ndim = 1 + h.ndim % 3;
  for (uint32_t i = 0; i < 3; i++) {
    uint64_t n = h.flags & HUGE_SHAPE ? huge_extent(h.shape[i]) : extent(h.shape[i], args.ndim);
    args.shape[i] = i < args.ndim ? n : 1;
  }
  args.acc_dtype = args.dtype == FLOAT16 || args.dtype == BFLOAT16 ? uint32_t(FLOAT32) : args.dtype;
  choose_params(h, codec, args, args.params);
  return args;
}

// Repeated by doubling what is there.
void repeat(Bytes bytes, uint8_t* dst, uint64_t nbytes) {
  uint64_t have = std::min(bytes.nbytes, nbytes);
  if (!have) return void(nbytes && memset(dst, 0, nbytes));
  memcpy(dst, bytes.data, have);
  for (uint64_t n; have < nbytes; have += n) {
    n = std::min(have, nbytes - have);
    memcpy(dst + have, dst, n);
  }
}

void fill(const Header& h, const Args& args, Bytes bytes, uint8_t* array) {
  const uint64_t nbytes = args.nbytes();
  repeat(bytes, array, nbytes);
  if (!(h.flags & NOISE)) return;
  uint64_t state = h.extra | 1;
  for (uint64_t i = 0; i + 4 <= nbytes; i += 4) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;  // xorshift
    // The low byte of little-endian words far more often than one of the others.
    if (state >> 56 < 200) array[i] ^= uint8_t(state >> 8);
    else if (state >> 56 < 206) array[i + state % 4] ^= uint8_t(state >> 8);
  }
}

const std::vector<const Level*>& levels_for(const Header& h) {
  static const auto choices = [] {
    std::vector<std::vector<const Level*>> all(1);
    for (auto p = levels(); *p; p++) {
      all[0].push_back(*p);
      all.push_back({*p});
    }
    return all;
  }();
  const unsigned choice = h.dtype >> 4;
  if (always_all_levels || choice < 2) return choices[0];
  return choices[1 + choice % (choices.size() - 1)];
}

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
  auto run = [&](const Level* level, const Buffer& dst) {
    return level->codecs[codec]->decode(&args, in.data(), in.nbytes(), dst.data());
  };
  auto equal = [](const Buffer& a, const Buffer& b) { return !memcmp(a.data(), b.data(), a.nbytes()); };
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
  const bool has_add = table()[codec]->decode_add, one = levels_for(h).size() == 1;
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
  if (!table()[codec]->add || given.nbytes() > heap_nbytes) return;
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
  const bool both = levels_for(h).size() > 1, only_add = !both && h.flags & ADD && table()[codec]->add;
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

}  // namespace fuzz
