// Any bytes as a payload: the decoders touch nothing but their buffers, whatever the bytes say.
#include <algorithm>

#include "harness.h"
#include "szp.h"

using namespace fuzz;

// Codecs whose payloads have one size refuse any other at once. Encoding zeros tells the size.
static Bytes fit(const Header& header, int codec, Args args, Bytes bytes, std::vector<uint8_t>& fitted) {
  static std::vector<uint8_t> zeros;
  args.capacity = args.nbytes() * 2 + 4096;
  if (zeros.size() < args.nbytes()) zeros.resize(args.nbytes());
  if (fitted.size() < args.capacity) fitted.resize(args.capacity);
  const int64_t n = levels_for(header)[0]->codecs[codec]->encode(&args, zeros.data(), fitted.data());
  if (n <= 0) return bytes;
  repeat(bytes, fitted.data(), n);
  return {fitted.data(), uint64_t(n)};
}

// The widths of szp's blocks come first, and have to be such as there are, and to add up.
static Bytes fit_szp(const Args& args, Bytes bytes, std::vector<uint8_t>& fitted) {
  const uint64_t reals = args.dtype >= COMPLEX64 ? 2 : 1, n = args.size() * reals;
  const uint64_t blocks = CC_LEVEL::szp_blocks(n), head = CC_LEVEL::szp_widths_nbytes(blocks);
  uint64_t nbytes = head;
  fitted.assign(head, 0);
  if (head) repeat(bytes, fitted.data(), blocks);
  for (uint64_t i = 0; i < blocks; i++) {
    const int raw = int(std::min<uint64_t>(32, n - 32 * i) * (itemsize(args.dtype) / reals));
    uint8_t& width = fitted[i];
    if (CC_LEVEL::szp_nbytes(width, raw) < 0) width &= width & 64 ? 0x5f : 0x9f;
    nbytes += CC_LEVEL::szp_nbytes(width, raw);
  }
  fitted.resize(nbytes);
  repeat(bytes, fitted.data() + head, nbytes - head);
  return {fitted.data(), nbytes};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t nbytes) {
  static std::vector<uint8_t> fitted;
  Bytes payload = {data, nbytes};
  const Header header = take_header(payload);
  const int codec = codec_index(header);
  const Args args = arguments(header);
  const bool fits = header.flags & FITTING && args.size() <= heap_nbytes / 16;
  if (fits && is(codec, "szp")) payload = fit_szp(args, payload, fitted);
  else if (fits && has_fixed_size(codec)) payload = fit(header, codec, args, payload, fitted);
  Bytes a = payload, b = payload;
  if (!fits) {
    a.nbytes = header.extra % (payload.nbytes + 1);
    b = {payload.data + a.nbytes, payload.nbytes - a.nbytes};
  }
  decode_or_add(header, codec, args, payload, a, b);
  return 0;
}
