// One instruction-set level: the table of its codecs. Compiled once per level.
#include "../accumulate.h"
#include "../checksum.h"
#include "../convert.h"
#include "table.h"

namespace compcoll {
namespace CC_LEVEL {

#define CC_ENTRY(name) &name##_codec,
static const Codec* const codecs[] = {CC_CODECS(CC_ENTRY) nullptr};

#define CC_STRING2(x) #x
#define CC_STRING(x) CC_STRING2(x)
extern const Level level = {CC_STRING(CC_LEVEL), codecs, checksum, accumulate, convert, largest};

}  // namespace CC_LEVEL
}  // namespace compcoll
