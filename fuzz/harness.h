// What the harnesses share. An input is a header, which chooses codec, arguments and what is done, and
// bytes: a payload or an array's values.
#pragma once
#include <cstdint>
#include <vector>

#include "buffer.h"
#include "cpu/table.h"

namespace fuzz {

using namespace compcoll;

// The first bytes of an input, little-endian. fuzz/seeds.py writes the same.
struct __attribute__((packed)) Header {
  uint8_t codec;       // which one of the family
  uint8_t dtype;       // lower four bits: 1 to 14; 0 and 15 are none. Upper four: see levels_for
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
  RECONSTRUCT = 2,         // roundtrip.cpp: reconstruct too, where an input runs at one level
  SMALL_CAPACITY = 4,      // `extra` bytes for what is encoded
  SLACK_CAPACITY = 8,      // as Python gives: 64 bytes more than the array has
  NOISE = 16,              // the array is made of the bytes, changed at random
  FITTING = 16,            // decode.cpp: the payload has the size that it should have, where that is known
  BYTE_OFFSET = 32,        // buffers begin at odd addresses
  // Where an input runs at one level: decode_add in place of decode; add in place of either.
  DECODE_ADD = 64,
  ADD = 128,
};

// Ends the run with a report where a promise is not kept. Not assert: NDEBUG must not matter.
void require(bool kept, const char* promise);

struct Bytes {
  const uint8_t* data;
  uint64_t nbytes;
};

// The header, with zeros where the input is too short for one; `input` becomes what follows.
Header take_header(Bytes& input);

// The codec at position `index` of the table, and its arguments as the header says.
int codec_index(const Header& header);
Args arguments(const Header& header);

void repeat(Bytes bytes, uint8_t* dst, uint64_t nbytes);

// An array for `args`, made of the bytes by repetition.
void fill(const Header& header, const Args& args, Bytes bytes, uint8_t* array);

bool is_float(uint32_t dtype);
const char* name_of(int codec);
bool is(int codec, const char* name);
bool is_lossless(int codec);
bool is_blockscale(int codec);
bool has_fixed_size(int codec);
int chosen_codec(uint64_t ordinal);  // what the codec `lossless` means by its first parameter

// What the codecs answered, each counted once for all levels: whether inputs get anywhere.
struct Answers {
  unsigned long long encoded, not_encoded, decoded, not_decoded;
};
extern Answers answers;

// Best first. An input runs either at all levels of this processor, which then have to agree (2 of 16 values
// of the upper bits of `dtype`, or every input with --levels=all), or at one: more inputs in the same time,
// with the same checks of each.
const std::vector<const Level*>& levels_for(const Header& header);

// decode, decode_add or both. Where the answer is 0 and `result` is not null, the decoded array.
int64_t decode(const Header& header, int codec, const Args& args, Bytes payload, uint8_t* result = nullptr);

// Adds two payloads and decodes the sum.
void add(const Header& header, int codec, const Args& args, Bytes a, Bytes b);

// The former, the latter or both, as the header says.
void decode_or_add(const Header& header, int codec, const Args& args, Bytes payload, Bytes a, Bytes b);

// Encodes into exactly as many bytes as the header says, and changes `args` as the encoder does.
int64_t encode(const Header& header, int codec, Args& args, Bytes array, std::vector<uint8_t>& payload);

// What `encode` made of an array: its answer, its arguments, and of an answer of at least 0 the payload and
// what that decodes to, if it was decoded.
struct Encoded {
  int64_t status;
  Args args;
  Bytes payload;
  const uint8_t* decoded;
};

// Encodes once more by `reconstruct`, with the arguments that `encode` was given: the same comes out, in
// place too. Nothing where the codec has no such kernel.
void reconstruct(const Header& header, int codec, const Args& given, Bytes array, const Encoded& expected);

}  // namespace fuzz
