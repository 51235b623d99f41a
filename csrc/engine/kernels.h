// The kernels of csrc/cuda: which ones an operation uses, and their arguments.
//
// A codec on a device is a list of kernels that run one after another on the same jobs.
#pragma once
#include <string>
#include <vector>

#include "cuda.h"
#include "frame.h"

namespace compcoll {
namespace engine {

// struct Job and struct Result of csrc/cuda/job.cuh, with device addresses.
struct Result {
  int64_t nbytes;
  double bound;
  uint32_t bad, checksum;
  uint64_t extent[3], params[2];
  uint32_t arrived, wanted;
  uint64_t parts;
  uint8_t header[HEADER_NBYTES];
};
struct Job {
  Address src, dst;
  uint64_t n, nbytes, params[2];
  Address result, scratch;
};
static_assert(sizeof(Result) == 160 && sizeof(Job) == 64, "as the kernels have them");

inline uint32_t real_nbytes(uint32_t dtype) { return itemsize(dtype) / (is_complex(dtype) ? 2 : 1); }

// Arrays of this size or larger have no kernels, because offsets in kernels have 32 bits.
constexpr uint64_t most_kernel_nbytes = uint64_t(1) << 32;

// One kernel by its name.
struct KernelName {
  std::string module, name;  // a file of csrc/cuda with its compile-time parameters, as in bfp-f32-7
  uint32_t per_block;  // values, or bytes, that a block of threads processes at once
  uint32_t threads = 128;
  bool by_nbytes = false;  // true if it counts payload bytes
};
using KernelNames = std::vector<KernelName>;

// Empty if there are no kernels. `codec` is a name such as bfp, `params` are the header's words; blocks have
// 1 to 3 dimensions.
KernelNames encoders(const std::string& codec, uint32_t dtype, const uint64_t* params, uint32_t ndim);
KernelNames decoders(const std::string& codec, uint32_t dtype, const uint64_t* params, bool adds,
                     uint32_t ndim);
// Kernels that add two frames.
KernelNames adders(const std::string& codec, uint32_t dtype);
// The kernel that converts between 16-bit floats and float32.
KernelNames converters(uint32_t from, uint32_t to);
// The kernel that finds the largest magnitude of floats.
KernelNames largest_kernel(uint32_t dtype);
// The kernel that copies bytes, including pieces with gaps between them.
KernelNames copying_kernel();

// An array's size in the units that a codec's kernels count.
uint64_t units(const std::string& codec, uint64_t n, uint64_t nbytes);
// Zeroed scratch bytes for a job of `units` units, with `words` words per tile.
uint64_t scratch_nbytes(const std::string& codec, uint64_t units, uint64_t words = 1);
// Payload size of `n` elements; -1 if it depends on more than their number.
int64_t payload_nbytes(const std::string& codec, uint32_t dtype, uint64_t n, const uint64_t* params);
// True if a payload has the size that its header implies, and the kernels can count its blocks.
bool is_size_sound(const Header& header);
// Parameter words of a job for a block of this shape.
void job_params(const std::string& codec, uint32_t dtype, uint32_t ndim, const uint64_t* shape,
                const uint64_t* params, uint64_t* words);

// A codec's name from the word in a header.
std::string name_of(uint64_t packed);

}  // namespace engine
}  // namespace compcoll
