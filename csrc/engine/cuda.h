// NVIDIA's driver through its own functions, and this process's resources on each GPU.
//
// The library is opened by name, so neither a toolkit nor a GPU is needed to build or load this code. No
// context is created here: only contexts that the program has already made are used.
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

using Address = uint64_t;  // device memory

// Functions of the driver, with their symbols.
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

// CUDA_MEMCPY2D for rows from the host to a device.
struct RowsToDevice {
  size_t from_x = 0, from_y = 0;
  int from_type = 1;  // host
  const void* from = nullptr;
  Address from_device = 0;
  void* from_array = nullptr;
  size_t from_pitch = 0, to_x = 0, to_y = 0;
  int to_type = 2;  // device
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

// Null if there is no driver.
const Driver* driver();

// Number of the GPU that memory lies on; NO_GPU for host and managed memory, and for all memory in a process
// that does not use a GPU yet.
constexpr int NO_GPU = -1;
int gpu_of(const void* memory);

// The driver's error code, and the function that returned it.
struct DeviceFault {
  int code = 0;
  const char* function = "";
  int gpu = NO_GPU;
  explicit operator bool() const { return code != 0; }
  std::string text() const;
};

// Memory in pieces of four sizes per octave. A piece is reused for requests of at least half its size. Memory
// is allocated, and idle memory freed, only if no piece fits: the driver may wait for the whole GPU then.
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

// A kernel, and how many of a job's values a block of threads processes at once.
struct Kernel {
  void* function = nullptr;
  uint32_t per_block = 1, threads = 1;
  bool by_nbytes = false;  // true if it counts payload bytes instead
};

// A GPU of this process; never freed.
class Gpu {
 public:
  // Never null: a GPU that the driver does not provide is marked as failed.
  static Gpu* of(int number);
  Gpu(const Gpu&) = delete;

  const int number;
  // Number of blocks of 128 threads that fill the GPU.
  uint32_t max_grid() const { return max_grid_; }

  // The first error; after it, no function of the driver is called.
  DeviceFault fault() const;
  bool failed() const { return failed_; }
  // Records the result of a driver call; true if it succeeded.
  bool check(int code, const char* function);

  // Enqueue into a stream, in this GPU's context; no-ops after a failure.
  void to_device(Address to, const void* from, uint64_t nbytes, void* stream);
  // Rows with the same stride on both sides.
  void rows_to_device(Address to, const uint8_t* from, uint64_t nbytes, uint64_t rows, int64_t stride,
                      void* stream);
  void to_host(void* to, Address from, uint64_t nbytes, void* stream);
  void on_device(Address to, Address from, uint64_t nbytes, void* stream);
  void clear(Address memory, uint64_t nbytes, void* stream);
  void launch(const Kernel& kernel, unsigned grid_x, unsigned grid_y, Address jobs, void* stream);
  void record(void* event, void* stream);
  void wait_for(void* event, void* stream);
  // True if an event has completed; always true after a failure.
  bool has_come(void* event);

  // Streams and events are reused after they are put back.
  void* take_stream();
  void put_stream(void* stream) { put(&streams_, stream); }
  void* take_event();
  void put_event(void* event) { put(&events_, event); }
  Allocator& memory() { return memory_; }

  // Kernels by name, as compiled by Python for this GPU; null if there is no such kernel.
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

// Makes a GPU's context current in this thread, and allows its calls during stream captures of other threads.
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

// Pinned host memory, which GPUs access directly; pageable memory once the driver has none left.
class Pinned : public Arena {
 public:
  Pinned() : Arena(4096, 512 << 20) {}
  // Allocates in this GPU's context from now on. `maps`: the GPU reaches added memory at its host addresses.
  void use(Gpu* gpu, bool maps);
  // True if kernels can access this memory, allocated here or added, at its address.
  bool is_mapped(const uint8_t* memory);
  // Adds memory allocated elsewhere, for good; false if the driver refuses.
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

// Events recorded in the caller's thread, after the work that it has submitted to GPUs.
class Marks {
 public:
  Marks() = default;
  ~Marks();
  Marks(const Marks&) = delete;
  // Records after the caller's current streams and `more`; false if one of them is being captured, or the GPU
  // has failed.
  bool record(Gpu* gpu, DeviceFault* fault, const std::vector<void*>& more = {});
  // Makes a stream of this or another GPU wait for all of the events.
  void precede(Gpu* gpu, void* stream) const;

 private:
  std::vector<std::pair<Gpu*, void*>> events_;
};

// Adds the current stream of a library whose stream the driver does not know; for CuPy's this needs Python.
using FindStream = void (*)(int gpu, std::vector<void*>* streams);
void set_find_stream(FindStream find);
// The caller's current streams on a GPU.
std::vector<void*> current_streams(int gpu);

// Fault code for a stream that is being captured.
constexpr int CAPTURING = -1;

}  // namespace engine
}  // namespace compcoll
