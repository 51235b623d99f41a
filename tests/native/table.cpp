// An instruction-set level with the codecs that the driver uses.
#include "accumulate.h"
#include "checksum.h"
#include "convert.h"
#include "cpu/table.h"

namespace compcoll {
namespace CC_LEVEL {

static const Codec* const codecs[] = {&raw_codec, &int8_codec, nullptr};
extern const Level level;
const Level level = {"baseline", codecs, checksum, accumulate, convert, largest};

}  // namespace CC_LEVEL
}  // namespace compcoll
