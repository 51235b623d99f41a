// Any bytes as a payload: the decoders touch nothing but their buffers, whatever the bytes say.
#include "harness.h"

using namespace fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t nbytes) {
  Header header;
  Bytes payload;
  if (!split({data, nbytes}, header, payload)) return 0;
  const int codec = codec_index(header);
  const Args args = arguments(header);
  decode_everywhere(header, codec, args, payload);
  const uint64_t middle = header.extra % (payload.nbytes + 1);
  add_everywhere(header, codec, args, {payload.data, middle},
                 {payload.data + middle, payload.nbytes - middle});
  return 0;
}
