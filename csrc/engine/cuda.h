// NVIDIA's driver by its own functions, and what the process has of each GPU.
//
// The library is opened by its name, so that neither a toolkit nor a GPU is needed to build or to load this.
// Nothing here begins to use a GPU: contexts are those that the program has made already.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pool.h"

namespace compcoll {
namespace engine {

using Address = uint64_t;  // of memory of a device

// Functions of the driver, each with its name there.
#define COMPCOLL_DRIVER(X)                                                                                 \
  X(get_error_name, "cuGetErrorName", int, const char**)                                                   \
  X(device_get, "cuDeviceGet", int*, int)                                                                  \
  X(device_attribute, "cuDeviceGetAttribute", int*, int, int)                                              \
  X(retain_context, "cuDevicePrimaryCtxRetain", void**, int)                                               \
  X(push_context, "cuCtxPushCurrent_v2", void*)                                                            \
  X(pop_context, "cuCtxPopCurrent_v2", void**)                                                             \
  X(pointer_attributes, "cuPointerGetAttributes", unsigned, const int*, void**, Address)                   \
  X(memory_alloc, "cuMemAlloc_v2", Address*, size_t)                                                       \
  X(memory_free, "cuMemFree_v2", Address)                                                                  \
  X(host_alloc, "cuMemHostAlloc", void**, size_t, unsigned)                                                \
  X(host_register, "cuMemHostRegister_v2", void*, size_t, unsigned)                                        \
  X(host_free, "cuMemFreeHost", void*)                                                                     \
  X(to_device, "cuMemcpyHtoDAsync_v2", Address, const void*, size_t, void*)                                \
  X(to_host, "cuMemcpyDtoHAsync_v2", void*, Address, size_t, void*)                                        \
  X(on_device, "cuMemcpyAsync", Address, Address, size_t, void*)                                           \
  X(rows_to_device, "cuMemcpy2DAsync_v2", const void*, void*)                                              \
  X(set_bytes, "cuMemsetD8Async", Address, unsigned char, size_t, void*)                                   \
  X(stream_create, "cuStreamCreate", void**, unsigned)                                                     \
  X(stream_wait, "cuStreamWaitEvent", void*, void*, unsigned)                                              \
  X(stream_is_capturing, "cuStreamIsCapturing", void*, int*)                                               \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", int*)                                               \
  X(event_create, "cuEventCreate", void**, unsigned)                                                       \
  X(event_record, "cuEventRecord", void*, void*)                                                           \
  X(event_query, "cuEventQuery", void*)                                                                    \
  X(launch, "cuLaunchKernel", void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
    void*, void**, void**)

// CUDA_MEMCPY2D, of rows from the host to a device.
struct RowsToDevice {
  size_t from_x = 0, from_y = 0;
  int from_type = 1;  // the host's
  const void* from = nullptr;
  Address from_device = 0;
  void* from_array = nullptr;
  size_t from_pitch = 0, to_x = 0, to_y = 0;
  int to_type = 2;  // a device's
  void* to_host = nullptr;
  Address to = 0;
  void* to_array = nullptr;
  size_t to_pitch = 0, width = 0, rows = 0;
};

struct Driver {
#define COMPCOLL_FUNCTION(name, symbol, ...) int (*name)(__VA_ARGS__) = nullptr;
  COMPCOLL_DRIVER(COMPCOLL_FUNCTION)
#undef COMPCOLL_FUNCTION
};

// Null where there is none.
const Driver* driver();

// Number of the GPU that memory lies on; NO_GPU for the host's, managed memory, and all memory in a process
// that has not begun to use a GPU.
constexpr int NO_GPU = -1;
int gpu_of(const void* memory);

// What a function of the driver has returned in place of success.
struct DeviceFault {
  int code = 0;
  const char* function = "";
  int gpu = NO_GPU;
  explicit operator bool() const { return code != 0; }
  std::string text() const;
};

// Memory in pieces of four sizes an octave, kept for whoever needs at least half as much again. Fresh memory is
// asked for, and idle memory given back, only where there is no piece that fits: the driver may wait for all of
// a GPU then.
class Arena : public Allocator {
 public:
  Arena(uint64_t unit, uint64_t keep_nbytes) : unit_(unit), keep_nbytes_(keep_nbytes) {}
  uint8_t* get(uint64_t nbytes) override;
  void put(uint8_t* memory, uint64_t nbytes) override;

 protected:
  virtual uint8_t* allocate(uint64_t nbytes);  // throws std::bad_alloc
  virtual uint8_t* try_allocate(uint64_t nbytes) = 0;  // null if the driver has none
  virtual void free(uint8_t* memory) = 0;

 private:
  uint64_t size_of(uint64_t nbytes) const;

  const uint64_t unit_, keep_nbytes_;
  std::mutex mutex_;
  std::multimap<uint64_t, uint8_t*> idle_;
  std::map<uint64_t, uint64_t> n_made_;  // pieces by their size
  std::unordered_map<uint8_t*, uint64_t> sizes_;
  uint64_t idle_nbytes_ = 0;
};

// A kernel, and how many of a job's values a block of threads takes in one go.
struct Kernel {
  void* function = nullptr;
  uint32_t per_block = 1, threads = 1;
  bool by_nbytes = false;  // of the payload, that is
};

// A GPU of this process, for good.
class Gpu {
 public:
  // One that the driver does not give has failed.
  static Gpu* of(int number);
  Gpu(const Gpu&) = delete;

  const int number;
  // Blocks of 128 threads that fill it.
  uint32_t max_grid() const { return max_grid_; }

  // The first error; from then on no function of the driver is called.
  DeviceFault fault() const;
  bool failed() const { return failed_; }
  // Notes what a function has returned; whether that is success.
  bool check(int code, const char* function);

  // Put something into a stream, under this GPU's context; nothing of a GPU that has failed.
  void to_device(Address to, const void* from, uint64_t nbytes, void* stream);
  // Rows that lie as far apart on both sides.
  void rows_to_device(Address to, const uint8_t* from, uint64_t nbytes, uint64_t rows, int64_t stride,
                      void* stream);
  void to_host(void* to, Address from, uint64_t nbytes, void* stream);
  void on_device(Address to, Address from, uint64_t nbytes, void* stream);
  void clear(Address memory, uint64_t nbytes, void* stream);
  void launch(const Kernel& kernel, unsigned grid_x, unsigned grid_y, Address jobs, void* stream);
  void record(void* event, void* stream);
  void wait_for(void* event, void* stream);
  // Whether an event has come; of a GPU that has failed all have.
  bool has_come(void* event);

  // Streams and events are given out again when they come back.
  void* take_stream();
  void put_stream(void* stream) { put(&streams_, stream); }
  void* take_event();
  void put_event(void* event) { put(&events_, event); }
  Allocator& memory() { return memory_; }

  // Kernels by their names, which Python has compiled for it; null where there is none of this name.
  void add_kernel(const std::string& name, void* function);
  void* find_kernel(const std::string& name);
  // Changes whenever a kernel is added.
  uint64_t generation() const { return generation_; }

 private:
  friend class Within;
  explicit Gpu(int number) : number(number), memory_(*this) {}
  void* take(std::vector<void*>* idle, int (*create)(void**, unsigned), unsigned flags, const char* function);
  void put(std::vector<void*>* idle, void* one);

  class Memory : public Arena {
   public:
    explicit Memory(Gpu& gpu) : Arena(512, 256 << 20), gpu_(gpu) {}

   protected:
    uint8_t* try_allocate(uint64_t nbytes) override;
    void free(uint8_t* memory) override;

   private:
    Gpu& gpu_;
  };

  void* context_ = nullptr;
  uint32_t max_grid_ = 16;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  DeviceFault fault_;
  std::vector<void*> streams_, events_;
  std::unordered_map<std::string, void*> kernels_;
  std::atomic<uint64_t> generation_{0};
  Memory memory_;
};

// Makes a GPU's context this thread's current one, and captures of other threads none of its affair.
class Within {
 public:
  Within() = default;
  explicit Within(Gpu& gpu) { enter(gpu); }
  ~Within() { restore(); }
  Within(const Within&) = delete;
  void enter(Gpu& gpu);
  void restore();

 private:
  Gpu* gpu_ = nullptr;
  int mode_ = 0;
};

// Memory of the host that GPUs reach by themselves; once the driver has none left, memory that they do not.
class Pinned : public Arena {
 public:
  Pinned() : Arena(4096, 512 << 20) {}
  // Allocates in a GPU's context from now on. `maps`: whether it reaches memory that was added as the host does.
  void use(Gpu* gpu, bool maps);
  // True if memory from here, or within what was added, is such that kernels reach by its address.
  bool is_mapped(const uint8_t* memory);
  // Adds memory that others have allocated, for good; false if the driver does not allow it.
  bool add(uint8_t* memory, uint64_t nbytes);
  bool has_added(const uint8_t* memory);

 protected:
  uint8_t* allocate(uint64_t nbytes) override;
  uint8_t* try_allocate(uint64_t nbytes) override;
  void free(uint8_t* memory) override;

 private:
  std::atomic<Gpu*> gpu_{nullptr};
  std::mutex mutex_;
  bool maps_added_ = true;
  std::unordered_map<const uint8_t*, bool> pageable_;
  std::map<const uint8_t*, uint64_t> added_;  // bytes
};
Pinned& pinned();

// Events behind what the caller has started on GPUs, recorded in its thread.
class Marks {
 public:
  Marks() = default;
  ~Marks();
  Marks(const Marks&) = delete;
  // Behind the current streams of the caller, and more; false where one of them is being captured, or the
  // GPU has failed.
  bool record(Gpu* gpu, DeviceFault* fault, const std::vector<void*>& more = {});
  // Has a stream of this or another GPU come after all of them.
  void precede(Gpu* gpu, void* stream) const;

 private:
  std::vector<std::pair<Gpu*, void*>> events_;
};

// Adds the current stream of a library that this is not told by the driver; CuPy's needs Python.
using FindStream = void (*)(int gpu, std::vector<void*>* streams);
void set_find_stream(FindStream find);
// The caller's current streams on a GPU.
std::vector<void*> current_streams(int gpu);

// The code of a fault for a stream that is being captured.
constexpr int CAPTURING = -1;

}  // namespace engine
}  // namespace compcoll
