#include "coding.h"

#include <cstring>

#include "../lossless.h"
#include "rounding.h"

namespace compcoll {
namespace engine {
namespace {

// Scratch memory that is returned to its pool on destruction.
struct PooledMemory {
  PooledMemory(Pool& pool, uint64_t nbytes) : pool(pool), nbytes(nbytes), data(pool.get(nbytes)) {}
  ~PooledMemory() { pool.put(data, nbytes); }
  Pool& pool;
  uint64_t nbytes;
  uint8_t* data;
};

Args args_of(const Header& h, uint32_t acc_dtype) {
  uint32_t ndim = h.ndim ? h.ndim : 1;
  return {h.dtype, ndim, {h.shape[0], h.shape[1], h.shape[2]}, {h.params[0], h.params[1]}, 0, acc_dtype, 0,
          nullptr, false};
}

bool is_delta(const uint64_t codec) {
  static const uint64_t delta = packed_name("delta");
  return codec == delta;
}

Error error_of(Problem problem, const Frame& frame, int64_t status = 0) {
  Error error;
  error.problem = problem;
  error.status = status;
  error.header = frame.header;
  return error;
}

}  // namespace

const Codec* Coder::find(uint64_t name) const {
  for (const Codec* const* codec = level_.codecs; *codec; codec++)
    if (packed_name((*codec)->name) == name) return *codec;
  return nullptr;
}

int32_t Coder::index_of(uint64_t name) const {
  for (int32_t i = 0; level_.codecs[i]; i++)
    if (packed_name(level_.codecs[i]->name) == name) return i;
  return -1;
}

Attempt Coder::chosen(const uint64_t* params) const {
  static const uint64_t names[] = {packed_name("raw"), packed_name("mpc"), packed_name("float")};
  Attempt made = {};
  made.codec = index_of(names[params[0]]);
  for (auto& own : made.params)
    own[0] = params[0] == CHOSE_MPC ? params[1] : params[0] == CHOSE_FLOAT ? 1 : 0;
  return made;
}

// -- encoding

Error Coder::encode(Span block, double carried, Span into, Frame* frame, Base* base) {
  frame->room = HEADER_NBYTES + block.nbytes() + SLACK;
  frame->memory = allocator_of(*frame).get(frame->room);
  frame->header = {0, block.dtype,    block.ndim(), {block.dim(0), block.dim(1), block.dim(2)}, {0, 0}, 0, 0,
                   0, frame->checked, false};
  const bool takes = into.dtype == block.dtype && into.n == block.n;
  if (!block.n) {
    static const uint64_t raw = packed_name("raw");
    frame->header.codec = raw;
    frame->header.bound = carried;
    pack(level_, &frame->header, frame->memory);
    frame->nbytes = HEADER_NBYTES;
    if (base) base->keep(level_, block.data, 0);
    return {};
  }
  const Reference known = base ? base->reference() : Reference();
  const Values values(takes ? into.data : nullptr, into.past_cache);
  if (Error error = encode(block.data, carried, values, frame, known)) return error;
  if (base) base->keep(level_, block.data, block.nbytes());
  return {};
}

Error Coder::encode(const uint8_t* data, double carried, Values values, Frame* frame, const Reference& base) {
  Header& h = frame->header;
  int64_t nbytes = UNSUPPORTED;
  for (const Attempt& one : coding_.attempts) {
    nbytes = attempt(one, data, values, frame, base);
    if (nbytes == Callbacks::FAILED) return error_of(Problem::CALLBACK, *frame);
    if (nbytes >= 0 && !values.data && may_overflow(h.bound) &&
        overflows(h.bound, level_.largest(h.dtype, data, h.size())))
      nbytes = UNREPRESENTABLE;
    if (nbytes >= 0 && uint64_t(nbytes) <= h.nbytes()) break;
    frame->settled = false;
    if ((nbytes == NONFINITE || nbytes == UNREPRESENTABLE) && !coding_.lossless) h.fallback = true;
  }
  if (nbytes < 0) return error_of(Problem::PAYLOAD, *frame, nbytes);
  h.payload_nbytes = nbytes;
  h.bound += carried;
  pack(level_, &h, frame->memory);
  frame->nbytes = HEADER_NBYTES + nbytes;
  return {};
}

// Errors below a quarter of the gap under the largest number make no sum infinite. Larger errors are common
// only in float16, and matter only for large values.
bool Coder::may_overflow(double bound) const {
  const Units units = units_of(coding_.dtype);
  return terms_ > 0 && bound > 0 && !(terms_ * bound < units.unit * units.most / 4);
}

bool Coder::overflows(double bound, double largest) const {
  return coding_.dtype != FLOAT16 || !(terms_ * (largest + bound) < units_of(FLOAT16).most);
}

// Payload bytes or a status, from one codec or the codec that `lossless` chooses.
int64_t Coder::attempt(const Attempt& one, const uint8_t* data, Values values, Frame* frame,
                       const Reference& base) {
  static const uint64_t lossless = packed_name("lossless"), raw = packed_name("raw");
  Header& h = frame->header;
  uint8_t* out = frame->memory + HEADER_NBYTES;
  if (one.codec == Attempt::CALLBACK) {
    const Callbacks& call = coding_.callbacks;
    const int64_t nbytes = call.encode(call.context, uint64_t(&one - coding_.attempts.data()), &h, data, out);
    if (nbytes >= 0 && h.dtype < COMPLEX64) h.bound = modulus(h.bound);  // from parts
    return nbytes;
  }
  Args args = args_of(h, 0);
  const uint64_t* params = one.params[args.ndim - 1];
  args.params[0] = params[0], args.params[1] = params[1];
  const Codec* codec;
  if (one.codec == Attempt::CHOOSE) {
    find(lossless)->encode(&args, data, out);
    const Attempt own = chosen(args.params);
    codec = level_.codecs[own.codec];
    args.params[0] = own.params[0][0], args.params[1] = 0;
  } else {
    codec = level_.codecs[one.codec];
    if (base.nbytes && base.nbytes == h.nbytes() && is_delta(packed_name(codec->name))) {
      args.base = base.data;
      args.params[1] = base.name;
    }
  }
  int64_t nbytes = UNSUPPORTED;
  if (values.data && codec->reconstruct) {
    // A payload larger than the block would be discarded after the block has been overwritten.
    args.capacity = h.nbytes();
    args.past_cache = values.past_cache;
    nbytes = codec->reconstruct(&args, data, out, values.data);
    frame->settled = nbytes != UNSUPPORTED;
  }
  if (nbytes == UNSUPPORTED) {
    args.capacity = h.nbytes() + SLACK;
    nbytes = codec->encode(&args, data, out);
  }
  bool larger = nbytes >= 0 && uint64_t(nbytes) > h.nbytes();
  if (one.codec == Attempt::CHOOSE && (nbytes < 0 || larger)) {
    codec = find(raw);
    args.params[0] = args.params[1] = 0;
    nbytes = codec->encode(&args, data, out);
    frame->settled = false;
  }
  h.codec = packed_name(codec->name);
  h.params[0] = args.params[0];
  h.params[1] = args.params[1];
  h.bound = modulus(args.bound);
  return nbytes;
}

// -- decoding

Error Coder::received(const uint8_t* header, uint64_t nbytes, Frame* frame) {
  frame->nbytes = 0;
  if (!nbytes) return {};
  const Damage damage = unpack(level_, header, nbytes, &frame->header);
  if (damage != Damage::NONE) {
    Error error = error_of(Problem::HEADER, *frame, int64_t(damage));
    error.available = nbytes;
    memcpy(error.bytes, header, nbytes < HEADER_NBYTES ? nbytes : HEADER_NBYTES);
    return error;
  }
  frame->nbytes = HEADER_NBYTES + frame->header.payload_nbytes;
  return {};
}

bool Coder::fits(const Frame& frame, Span into, bool adds, Error* error) {
  if (frame.poisoned()) {
    *error = error_of(Problem::POISONED, frame);
    return false;
  }
  const Header& h = frame.header;
  bool same = into.dtype == wide(h.dtype) || (into.dtype == h.dtype && !adds);
  if (same && h.size() == into.n) return true;
  *error = error_of(Problem::MISMATCH, frame);
  error->expected = into.n;
  error->expected_dtype = into.dtype;
  return false;
}

Error Coder::verify(const Frame& frame, const uint8_t** payload) {
  *payload = frame.memory + HEADER_NBYTES;
  const Header& h = frame.header;
  if (h.has_checksum && level_.checksum(*payload, h.payload_nbytes) != h.checksum)
    return error_of(Problem::CHECKSUM, frame);
  return {};
}

Error Coder::decode(const Frame& frame, Span into, Base* base) {
  Error error;
  if (!fits(frame, into, false, &error)) return error;
  bool adding = frame.header.dtype != into.dtype;  // 16-bit floats into an accumulator
  if (adding) memset(into.data, 0, into.nbytes());
  const bool named = base && is_delta(frame.header.codec) && base->is_named(frame.header.params[1]);
  error = decode(frame, into, adding, named ? base->reference() : Reference());
  if (base && error) base->drop();
  else if (base) base->keep(level_, into.data, into.nbytes());
  return error;
}

Error Coder::decode_add(const Frame& frame, Span into, double* error) {
  Error problem;
  if (!fits(frame, into, true, &problem)) return problem;
  problem = decode(frame, into, true, {});
  *error += frame.bound() + modulus(of_addition(into.dtype, level_.largest(into.dtype, into.data, into.n)));
  return problem;
}

Error Coder::decode(const Frame& frame, Span into, bool adding, const Reference& base) {
  const Header& h = frame.header;
  const Codec* codec = find(h.codec);
  const Callbacks& call = coding_.callbacks;
  const uint8_t* payload;
  if (Error error = verify(frame, &payload)) return error;
  Args args = args_of(h, into.dtype);
  args.past_cache = into.past_cache;
  if (is_delta(h.codec)) {
    if (base.nbytes != h.nbytes() || base.name != h.params[1]) return error_of(Problem::BASE, frame);
    args.base = base.data;
  }
  const auto decode = [&](uint8_t* dst) {
    return codec ? codec->decode(&args, payload, h.payload_nbytes, dst)
                 : call.decode(call.context, frame, dst);
  };
  int64_t status;
  if (!adding) {
    status = decode(into.data);
  } else if (codec && codec->decode_add) {
    status = codec->decode_add(&args, payload, h.payload_nbytes, into.data);
  } else {
    PooledMemory term(pool_, h.nbytes());
    status = decode(term.data);
    if (!status && !level_.accumulate(h.dtype, into.dtype, term.data, into.data, h.size()))
      status = UNSUPPORTED;
  }
  if (status == Callbacks::FAILED) return error_of(Problem::CALLBACK, frame);
  return status ? error_of(Problem::PAYLOAD, frame, status) : Error();
}

Error Coder::add(const Frame& frame, const Frame& other, Span like, Frame* sum) {
  Error error;
  if (!fits(frame, like, false, &error) || !fits(other, like, false, &error)) return error;
  const Header &a = frame.header, &b = other.header;
  const Codec* codec = find(a.codec);
  if (alike(a, b) && codec && codec->add) {
    const uint8_t *first, *second;
    if (Error problem = verify(frame, &first)) return problem;
    if (Error problem = verify(other, &second)) return problem;
    sum->room = HEADER_NBYTES + a.nbytes() + SLACK;
    sum->memory = allocator_of(*sum).get(sum->room);
    Args args = args_of(a, 0);
    args.capacity = a.nbytes() + SLACK;
    int64_t nbytes =
        codec->add(&args, first, a.payload_nbytes, second, b.payload_nbytes, sum->memory + HEADER_NBYTES);
    if (nbytes == BAD_STREAM) return error_of(Problem::PAYLOAD, frame, nbytes);
    if (nbytes >= 0 && uint64_t(nbytes) <= a.nbytes()) {
      sum->header = {a.codec,
                     a.dtype,
                     a.ndim,
                     {a.shape[0], a.shape[1], a.shape[2]},
                     {args.params[0], args.params[1]},
                     uint64_t(nbytes),
                     a.bound + b.bound + modulus(args.bound),
                     0,
                     a.has_checksum,
                     false};
      pack(level_, &sum->header, sum->memory);
      sum->nbytes = HEADER_NBYTES + nbytes;
      return {};
    }
    allocator_of(*sum).put(sum->memory, sum->room);
    sum->memory = nullptr;
  }
  // Frames that the codec cannot add are decoded, added, and encoded again.
  Span total = {nullptr, like.n, wide(like.dtype), like.plane, like.row};
  PooledMemory room(pool_, total.nbytes());
  total.data = room.data;
  double carried = a.bound;
  if (Error problem = decode(frame, total)) return problem;
  if (Error problem = decode_add(other, total, &carried)) return problem;
  if (total.dtype == like.dtype) return encode(total, carried, {nullptr, 0, 0}, sum);
  PooledMemory rounded(pool_, like.nbytes());
  like.data = rounded.data;
  carried += copy(total, like);
  return encode(like, carried, {nullptr, 0, 0}, sum);
}

double Coder::copy(Span block, Span into) {
  if (block.data == into.data) return 0;
  if (block.dtype == into.dtype) {
    Args args = {UINT8, 1, {block.nbytes(), 1, 1}, {0, 0}, 0, 0, 0, nullptr, into.past_cache};
    find(packed_name("raw"))->decode(&args, block.data, block.nbytes(), into.data);
    return 0;
  }
  level_.convert(block.dtype, into.dtype, block.data, into.data, block.n);
  bool widens = itemsize(into.dtype) > itemsize(block.dtype);
  return widens ? 0 : of_result(into.dtype, level_.largest(into.dtype, into.data, into.n));
}

}  // namespace engine
}  // namespace compcoll
