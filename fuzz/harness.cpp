#include "harness.h"

#include <sys/mman.h>

#include <cmath>
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

// --codec=name,name: the codecs that this run is about; all of them without it.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string option = "--codec=";
  for (int i = 1; i < *argc; i++) {
    std::string names = (*argv)[i];
    if (names.compare(0, option.size(), option)) continue;
    names = names.substr(option.size()) + ",";
    for (size_t at = 0, end; (end = names.find(',', at)) != names.npos; at = end + 1)
      family.push_back(index_of(names.substr(at, end - at)));
  }
  if (family.empty())
    for (int i = 0; table()[i]; i++) family.push_back(i);
  return 0;
}

void require(bool kept, const char* promise) {
  if (kept) return;
  fprintf(stderr, "== a promise is not kept: %s\n", promise);
  abort();
}

// Above this a buffer is mapped, and pages that are not touched cost nothing; above the other nothing may be
// touched at all, because no payload that fits into an input decodes to so much.
static constexpr uint64_t heap_nbytes = uint64_t(1) << 20, mapped_nbytes = uint64_t(1) << 32;

Buffer::Buffer(uint64_t nbytes, bool odd) : nbytes_(nbytes) {
  static uint8_t poison = 0;
  if (nbytes <= heap_nbytes) {
    owned_ = static_cast<uint8_t*>(malloc(nbytes + odd));
    data_ = owned_ + odd;
    memset(data_, ++poison * 37, nbytes);
    return;
  }
  int access = nbytes <= mapped_nbytes ? PROT_READ | PROT_WRITE : PROT_NONE;
  uint64_t length = nbytes <= mapped_nbytes ? nbytes : 4096;
  void* pages = mmap(nullptr, length, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(pages != MAP_FAILED, "there is address space for a huge array");
  data_ = static_cast<uint8_t*>(pages);
}

Buffer::~Buffer() {
  if (nbytes_ <= heap_nbytes) free(owned_);
  else munmap(data_, nbytes_ <= mapped_nbytes ? nbytes_ : 4096);
}

void Buffer::copy_from(const void* src) const {
  if (nbytes_) memcpy(data_, src, nbytes_);
}

bool split(Bytes input, Header& header, Bytes& rest) {
  if (input.nbytes < sizeof header) return false;
  memcpy(&header, input.data, sizeof header);
  rest = {input.data + sizeof header, input.nbytes - sizeof header};
  return true;
}

int codec_index(const Header& header) { return family[header.codec % family.size()]; }

bool is_float(uint32_t dtype) { return dtype >= FLOAT16; }

const char* name_of(int codec) { return table()[codec]->name; }

bool is(int codec, const char* name) { return !strcmp(name_of(codec), name); }

bool is_lossless(int codec) { return is(codec, "raw") || is(codec, "mpc") || is(codec, "float"); }

// Small arrays far more often than large ones, up to 5119 elements, and 0.
static uint64_t extent(uint16_t s, uint32_t ndim) {
  if (ndim == 1) return (s & 0x1fff) % (40u << (s >> 13));
  if (ndim == 2) return (s & 0x3fff) % (9u << (s >> 14));
  return (s & 0x3fff) % (5u + 4 * (s >> 14));
}

static uint64_t huge_extent(uint16_t s) { return uint64_t(s % 8 + 1) << (s >> 8) % 17; }

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
  } else if (!is(codec, "szp")) {
    params[0] = uint64_t(32) << h.params[0] % 4 | (h.params[0] >> 8 & 1) << 32;
  }
}

Args arguments(const Header& h) {
  Args args = {};
  args.dtype = h.dtype & 15;
  args.ndim = 1 + h.ndim % 3;
  for (uint32_t i = 0; i < 3; i++) {
    uint64_t n = h.flags & HUGE_SHAPE ? huge_extent(h.shape[i]) : extent(h.shape[i], args.ndim);
    args.shape[i] = i < args.ndim ? n : 1;
  }
  args.acc_dtype = args.dtype == FLOAT16 || args.dtype == BFLOAT16 ? uint32_t(FLOAT32) : args.dtype;
  choose_params(h, codec_index(h), args, args.params);
  return args;
}

void fill(const Header& h, const Args& args, Bytes bytes, uint8_t* array) {
  uint32_t state = h.extra | 1;
  for (uint64_t i = 0; i < args.nbytes(); i++) {
    array[i] = bytes.nbytes ? bytes.data[i % bytes.nbytes] : 0;
    if (!(h.flags & NOISE)) continue;
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;  // xorshift
    // Low bytes of little-endian words more than high ones.
    if (state >> 24 < (i % 4 == 0 ? 200u : 2u)) array[i] ^= uint8_t(state >> 8);
  }
}

const std::vector<const Level*>& all_levels() {
  static const std::vector<const Level*> found = [] {
    std::vector<const Level*> all;
    for (auto p = levels(); *p; p++) all.push_back(*p);
    return all;
  }();
  return found;
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

static void decode_add_everywhere(const Header& h, int codec, const Args& args, Bytes payload,
                                  int64_t expected) {
  Args wide = args;
  wide.dtype = args.acc_dtype;
  const bool odd = h.flags & BYTE_OFFSET;
  Buffer first(wide.nbytes(), odd);
  for (auto level : all_levels()) {
    const auto run = level->codecs[codec]->decode_add;
    if (!run) return;
    Buffer dst(wide.nbytes(), odd);
    if (wide.nbytes() && wide.nbytes() <= heap_nbytes) memset(dst.data(), 0x3c, wide.nbytes());
    const int64_t status = run(&args, payload.data, payload.nbytes, dst.data());
    require((status == 0) == (expected == 0) || !itemsize(args.dtype), "decode_add takes what decode takes");
    if (status || wide.nbytes() > heap_nbytes) continue;
    if (level == all_levels()[0]) first.copy_from(dst.data());
    require(equal_sums(wide.dtype, first, dst), "decode_add gives the same at all levels");
  }
}

int64_t decode_everywhere(const Header& h, int codec, const Args& args, Bytes payload) {
  const bool odd = h.flags & BYTE_OFFSET;
  Buffer exact(payload.nbytes, odd), first(args.nbytes(), odd);
  exact.copy_from(payload.data);
  const Bytes in = {exact.data(), exact.nbytes()};
  int64_t expected = 1;
  for (auto level : all_levels()) {
    Buffer dst(args.nbytes(), odd);
    const int64_t status = level->codecs[codec]->decode(&args, in.data, in.nbytes, dst.data());
    require(status <= 0, "decode answers 0 or a negative status");
    if (expected == 1) {
      expected = status;
      if (!status && args.nbytes() <= heap_nbytes) first.copy_from(dst.data());
    }
    require(status == expected, "decode answers the same at all levels");
    if (!status && args.nbytes() && args.nbytes() <= heap_nbytes)
      require(!memcmp(first.data(), dst.data(), args.nbytes()), "decode gives the same bytes at all levels");
  }
  decode_add_everywhere(h, codec, args, in, expected);
  return expected;
}

static uint64_t capacity(const Header& h, const Args& args) {
  if (h.flags & SMALL_CAPACITY) return h.extra;
  // Room for streams that are longer than what they stand for.
  return args.nbytes() + (h.flags & SLACK_CAPACITY ? 64 : args.nbytes() / 4 + 4096);
}

void add_everywhere(const Header& h, int codec, const Args& given, Bytes a, Bytes b) {
  if (!levels()[0]->codecs[codec]->add || given.nbytes() > heap_nbytes) return;
  const bool odd = h.flags & BYTE_OFFSET;
  Buffer one(a.nbytes, odd), two(b.nbytes, odd), first(capacity(h, given), odd);
  one.copy_from(a.data);
  two.copy_from(b.data);
  int64_t expected = INT64_MIN;
  Args args = given, settled = given;
  for (auto level : all_levels()) {
    args = given;
    args.capacity = capacity(h, given);
    Buffer dst(args.capacity, odd);
    const int64_t n =
        level->codecs[codec]->add(&args, one.data(), a.nbytes, two.data(), b.nbytes, dst.data());
    require(n <= int64_t(args.capacity), "a sum is not longer than the capacity");
    if (expected == INT64_MIN) {
      expected = n;
      settled = args;
      if (n > 0) memcpy(first.data(), dst.data(), n);
    }
    require(n == expected, "add answers the same at all levels");
    require(n < 0 || !memcmp(&settled, &args, sizeof args), "add gives the same bound at all levels");
    require(n <= 0 || !memcmp(first.data(), dst.data(), n), "add gives the same bytes at all levels");
  }
  if (expected >= 0)
    require(!decode_everywhere(h, codec, settled, {first.data(), uint64_t(expected)}), "sums can be decoded");
}

std::vector<uint8_t> encode_everywhere(const Header& h, int codec, Args& args, Bytes array, int64_t& status) {
  const bool odd = h.flags & BYTE_OFFSET;
  Buffer src(array.nbytes, odd);
  src.copy_from(array.data);
  const Args given = args;
  std::vector<uint8_t> payload;
  for (auto level : all_levels()) {
    Args own = given;
    own.capacity = capacity(h, given);
    Buffer dst(own.capacity, odd);
    const int64_t n = level->codecs[codec]->encode(&own, src.data(), dst.data());
    require(n <= int64_t(own.capacity), "a payload is not longer than the capacity");
    if (level == all_levels()[0]) {
      status = n;
      args = own;
      if (n > 0) payload.assign(dst.data(), dst.data() + n);
    }
    require(n == status, "encode answers the same at all levels");
    require(n < 0 || !memcmp(&args, &own, sizeof own), "encode gives the same arguments at all levels");
    require(n <= 0 || !memcmp(payload.data(), dst.data(), n), "encode gives the same bytes at all levels");
  }
  return payload;
}

}  // namespace fuzz
