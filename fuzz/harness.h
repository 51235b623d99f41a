// What the harnesses share. An input is a header, which chooses codec and arguments, and bytes: a payload or
// an array's values. Buffers have the exact size that the codec is promised, so that AddressSanitizer sees
// every byte touched outside of them.
#pragma once
#include <cstdint>
#include <vector>

#include "cpu/table.h"

namespace fuzz {

using namespace compcoll;

// The first bytes of an input, little-endian. fuzz/seeds.py writes the same.
struct __attribute__((packed)) Header {
  uint8_t codec;       // which one of the family
  uint8_t dtype;       // 1 to 14; 0 and 15 are none
  uint8_t ndim;
  uint8_t flags;
  uint16_t shape[3];
  uint16_t extra;      // what else a harness wants to choose
  uint64_t params[2];
};
static_assert(sizeof(Header) == 28);

enum Flags : uint8_t {
  PARAMS_AS_THEY_ARE = 1,  // else mapped to such as the codec takes
  HUGE_SHAPE = 2,          // far more elements than the payload can hold
  SMALL_CAPACITY = 4,      // `extra` bytes for what is encoded
  SLACK_CAPACITY = 8,      // as Python gives: 64 bytes more than the array has
  NOISE = 16,              // the array is made of the bytes, changed at random
  BYTE_OFFSET = 32,        // buffers begin at odd addresses
};

// Ends the run with a report where a promise is not kept. Not assert: NDEBUG must not matter.
void require(bool kept, const char* promise);

// A heap buffer of exactly so many bytes; reading or writing next to it is an error. The content is
// arbitrary: two buffers differ wherever they were not written.
class Buffer {
 public:
  explicit Buffer(uint64_t nbytes, bool odd = false);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  uint8_t* data() const { return data_; }
  uint64_t nbytes() const { return nbytes_; }
  void copy_from(const void* src) const;

 private:
  uint8_t* owned_ = nullptr;  // null for huge ones, which are mapped
  uint8_t* data_;
  uint64_t nbytes_;
};

struct Bytes {
  const uint8_t* data;
  uint64_t nbytes;
};

// Splits an input; false where it is too short.
bool split(Bytes input, Header& header, Bytes& rest);

// The codec at position `index` of the table, and its arguments as the header says.
int codec_index(const Header& header);
Args arguments(const Header& header);

// An array for `args`, made of the bytes by repetition.
void fill(const Header& header, const Args& args, Bytes bytes, uint8_t* array);

bool is_float(uint32_t dtype);
const char* name_of(int codec);
bool is(int codec, const char* name);
bool is_lossless(int codec);

// Every level of this processor, best first.
const std::vector<const Level*>& all_levels();

// decode, decode_add, and add with `other`, at every level: no report of a sanitizer, and all levels agree
// in status and, where that is 0, in every byte.
int64_t decode_everywhere(const Header& header, int codec, const Args& args, Bytes payload);
void add_everywhere(const Header& header, int codec, const Args& args, Bytes a, Bytes b);

// Encodes at every level into exactly `capacity` bytes. All agree in status, arguments and bytes.
std::vector<uint8_t> encode_everywhere(const Header& header, int codec, Args& args, Bytes array,
                                       int64_t& status);

}  // namespace fuzz
