// Chooses a lossless codec by trying each that suits the dtype on a few pieces of the data. The choice
// depends only on the data: every level and every run chooses alike.
#include <cstring>

#include "../lossless.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {
namespace lossless {
namespace {

struct Type {
  bool real;            // a float or complex
  uint32_t word_nbytes;  // for `mpc`
  uint32_t words;       // in one element, at least 1
};

Type type_of(uint32_t dtype) {
  switch (dtype) {
    case FLOAT16:
    case BFLOAT16:
    case FLOAT32: return {true, 4, 1};
    case FLOAT64: return {true, 8, 1};
    case COMPLEX64: return {true, 4, 2};
    case COMPLEX128: return {true, 8, 2};
    case INT64:
    case UINT64: return {false, 8, 1};
    default: return {false, 4, 1};
  }
}

// Returns the sample's size.
uint32_t take_sample(const uint8_t* src, const LosslessSample& from, uint8_t* sample) {
  for (uint64_t k = 0; k < from.n; k++) memcpy(sample + k * from.piece, src + k * from.step, from.piece);
  return uint32_t(from.nbytes());
}

struct Trial {
  Args args;
  const uint8_t* sample;
  uint64_t best;
  uint64_t* params;

  void attempt(const Codec& codec, LosslessChoice choice, uint64_t param) {
    uint8_t scratch[sample_nbytes + 1024];
    args.params[0] = param;
    args.params[1] = 0;
    int64_t nbytes = codec.encode(&args, sample, scratch);
    if (nbytes < 0 || uint64_t(nbytes) >= best) return;
    best = nbytes;
    params[0] = choice;
    params[1] = param;
  }
};

// Writes no payload, only the choice: params[0] is a LosslessChoice, params[1] the codec's parameter. If
// params[0] is 1 on input, src is already the sample, from an array whose rows have params[1] elements (0:
// one row).
int64_t choose(Args* args, const void* src, void*) {
  Type type = type_of(args->dtype);
  uint64_t nbytes = args->nbytes(), row = args->ndim > 1 ? args->shape[args->ndim - 1] : 0;
  bool sampled = args->params[0];
  if (sampled) row = args->params[1];
  args->params[0] = CHOSE_RAW;
  args->params[1] = 0;
  args->bound = 0;
  if (!nbytes) return 0;
  if (sampled && nbytes > sample_nbytes) return UNSUPPORTED;
  uint8_t sample[sample_nbytes];
  uint32_t taken = uint32_t(nbytes);
  if (sampled) memcpy(sample, src, taken);
  else taken = take_sample(static_cast<const uint8_t*>(src), {nbytes, type.word_nbytes}, sample);
  uint64_t shape = taken / itemsize(args->dtype), worth = taken - taken / 64;
  Trial trial = {{args->dtype, 1, {shape, 1, 1}, {}, taken + 512, 0, 0}, sample, worth, args->params};
  if (type.real) trial.attempt(float_codec, CHOSE_FLOAT, 1);
  if (type.real && itemsize(args->dtype) == 2) return 0;
  trial.attempt(mpc_codec, CHOSE_MPC, type.words);
  if (row > 1 && row <= 32 / type.words) trial.attempt(mpc_codec, CHOSE_MPC, row * type.words);
  return 0;
}

int64_t no_stream(const Args*, const void*, uint64_t, void*) { return BAD_STREAM; }

}  // namespace
}  // namespace lossless

extern const Codec lossless_codec = {"lossless", lossless::choose, lossless::no_stream, nullptr, nullptr};

}  // namespace CC_LEVEL
}  // namespace compcoll
