#include "cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>

namespace compcoll {
namespace engine {
namespace {

constexpr int n_multiprocessors = 16, uses_host_addresses = 91;  // device attributes
constexpr int is_managed = 8, memory_type = 2, device_ordinal = 9;  // pointer attributes
constexpr unsigned device_memory = 2;
constexpr unsigned non_blocking = 1, no_timing = 2, portable = 1, mapped = 2;
constexpr int thread_local_mode = 1;
constexpr int first_of_captures = 900, last_of_captures = 908;  // range of errors about captures
constexpr int64_t most_pitch = (int64_t(1) << 31) - 1;  // on all GPUs
constexpr int not_ready = 600;  // the event has not completed
constexpr int no_context = 201;  // the largest error code in a process that does not use a GPU yet
void* const legacy_stream = reinterpret_cast<void*>(1);

std::unique_ptr<Driver> open_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library) return nullptr;
  auto found = std::make_unique<Driver>();
  bool all = true;
#define COMPCOLL_LOOK_UP(name, symbol, ...)                                      \
  found->name = reinterpret_cast<decltype(found->name)>(dlsym(library, symbol)); \
  all = all && found->name;
  COMPCOLL_DRIVER(COMPCOLL_LOOK_UP)
#undef COMPCOLL_LOOK_UP
  return all ? std::move(found) : nullptr;
}

// Reports once that copies are slower because the driver refused this memory.
void say_slower(const char* what, uint64_t nbytes, std::atomic<bool>* said) {
  if (!said->exchange(true))
    fprintf(
        stderr,
        "compcoll: the driver %s %llu bytes, and copies from and to GPUs go through other memory, which is "
        "slower\n",
        what, static_cast<unsigned long long>(nbytes));
}

std::atomic<FindStream> find_stream{nullptr};
std::atomic<int> last_used{NO_GPU};

// True if an address is in host memory; works after the driver has failed, too.
bool is_readable(const void* memory) {
  char byte;
  const iovec to = {&byte, 1}, from = {const_cast<void*>(memory), 1};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

// Number of libraries that the process has ever loaded.
unsigned long long n_loaded() {
  unsigned long long n = 0;
  auto look = [](dl_phdr_info* info, size_t, void* to) {
    *static_cast<unsigned long long*>(to) = info->dlpi_adds;
    return 1;  // stop at the first one; all report the same number
  };
  dl_iterate_phdr(look, &n);
  return n;
}

// Adds torch's current stream, through a C function that torch's library exports.
void find_stream_of_torch(int gpu, std::vector<void*>* streams) {
  using Current = int (*)(int32_t, void**);
  static std::atomic<Current> current{nullptr};
  static std::atomic<unsigned long long> looked{0};
  Current ask = current;
  if (!ask) {
    const unsigned long long n = n_loaded();
    if (looked.exchange(n) == n) return;
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return;
    current = ask = reinterpret_cast<Current>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
    if (!ask) return;
  }
  void* stream = nullptr;
  if (!ask(gpu, &stream)) streams->push_back(stream);
}

}  // namespace

const Driver* driver() {
  static const Driver* const found = open_driver().release();
  return found;
}

int gpu_of(const void* memory) {
  const Driver* cuda = driver();
  if (!cuda || !memory) return NO_GPU;
  unsigned type = 0, managed = 0;
  int number = NO_GPU;
  const int attributes[] = {memory_type, is_managed, device_ordinal};
  void* values[] = {&type, &managed, &number};
  const int code = cuda->pointer_attributes(3, attributes, values, reinterpret_cast<Address>(memory));
  if (code) return code > no_context && !is_readable(memory) ? int(last_used) : NO_GPU;
  return type == device_memory && !managed ? number : NO_GPU;
}

std::string DeviceFault::text() const {
  if (code == CAPTURING)
    return "a stream of GPU " + std::to_string(gpu) +
           " is being captured into a graph, and the host takes part in this call";
  const char* name = nullptr;
  if (const Driver* cuda = driver()) cuda->get_error_name(code, &name);
  return std::string(function) + " failed on GPU " + std::to_string(gpu) + " with error " +
         std::to_string(code) + (name ? std::string(", ") + name : std::string());
}

// -- memory

// Upper limit on spare pieces. New memory is allocated with spare pieces of its size, one plus half as many
// as exist, because the next call may have more of them in flight.
constexpr uint64_t most_spare_nbytes = 32 << 20;

uint64_t Arena::size_of(uint64_t nbytes) const {
  uint64_t step = unit_;
  while (8 * step <= nbytes) step *= 2;
  return std::max<uint64_t>((nbytes + step - 1) / step, 1) * step;
}

uint8_t* Arena::get(uint64_t nbytes) {
  const uint64_t size = size_of(nbytes);
  uint64_t n_spare;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = idle_.lower_bound(size);
    if (found != idle_.end() && found->first <= 2 * size) {
      uint8_t* memory = found->second;
      idle_nbytes_ -= found->first;
      idle_.erase(found);
      return memory;
    }
    while (!idle_.empty() && idle_nbytes_ > keep_nbytes_) {
      auto largest = std::prev(idle_.end());
      idle_nbytes_ -= largest->first;
      sizes_.erase(largest->second);
      free(largest->second);
      idle_.erase(largest);
    }
    n_spare = std::min(1 + n_made_[size]++ / 2, most_spare_nbytes / size);
  }
  uint8_t* memory = allocate(size);
  std::unique_lock<std::mutex> lock(mutex_);
  sizes_[memory] = size;
  for (; n_spare; n_spare--) {
    lock.unlock();
    uint8_t* spare = try_allocate(size);
    lock.lock();
    if (!spare) break;
    n_made_[size]++;
    sizes_[spare] = size;
    idle_.emplace(size, spare);
    idle_nbytes_ += size;
  }
  return memory;
}

uint8_t* Arena::allocate(uint64_t nbytes) {
  uint8_t* memory = try_allocate(nbytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}

void Arena::put(uint8_t* memory, uint64_t) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t size = sizes_[memory];
  idle_.emplace(size, memory);
  idle_nbytes_ += size;
}

uint8_t* Gpu::Memory::try_allocate(uint64_t nbytes) {
  Address memory = 0;
  Within within(gpu_);
  if (gpu_.failed() || driver()->memory_alloc(&memory, nbytes)) return nullptr;
  return reinterpret_cast<uint8_t*>(memory);
}

void Gpu::Memory::free(uint8_t* memory) {
  Within within(gpu_);
  if (!gpu_.failed()) driver()->memory_free(reinterpret_cast<Address>(memory));
}

uint8_t* Pinned::try_allocate(uint64_t nbytes) {
  Gpu* gpu = gpu_;
  if (!gpu || gpu->failed()) return nullptr;
  Within within(*gpu);
  void* memory = nullptr;
  return driver()->host_alloc(&memory, nbytes, portable) ? nullptr : static_cast<uint8_t*>(memory);
}

uint8_t* Pinned::allocate(uint64_t nbytes) {
  if (uint8_t* memory = try_allocate(nbytes)) return memory;
  static std::atomic<bool> said{false};
  if (Gpu* gpu = gpu_; gpu && !gpu->failed()) say_slower("has no pinned memory left for", nbytes, &said);
  auto pageable = static_cast<uint8_t*>(::operator new(nbytes, std::align_val_t(64)));
  std::lock_guard<std::mutex> lock(mutex_);
  pageable_[pageable] = true;
  return pageable;
}

void Pinned::free(uint8_t* memory) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pageable_.erase(memory)) {
      ::operator delete(memory, std::align_val_t(64));
      return;
    }
  }
  Gpu* gpu = gpu_;
  Within within(*gpu);
  if (!gpu->failed()) driver()->host_free(memory);
}

void Pinned::use(Gpu* gpu, bool maps) {
  std::lock_guard<std::mutex> lock(mutex_);
  gpu_ = gpu;
  maps_added_ = maps_added_ && maps;
}

bool Pinned::is_mapped(const uint8_t* memory) {
  const bool added = has_added(memory);
  std::lock_guard<std::mutex> lock(mutex_);
  return added ? maps_added_ : !pageable_.count(memory);
}

bool Pinned::add(uint8_t* memory, uint64_t nbytes) {
  Gpu* gpu = gpu_;
  if (!gpu || gpu->failed()) return false;
  static std::atomic<bool> said{false};
  Within within(*gpu);
  if (driver()->host_register(memory, nbytes, portable | mapped)) {
    say_slower("does not register shared memory of", nbytes, &said);
    return false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  added_[memory] = nbytes;
  return true;
}

bool Pinned::has_added(const uint8_t* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto behind = added_.upper_bound(memory);
  return behind != added_.begin() && memory < std::prev(behind)->first + std::prev(behind)->second;
}

Pinned& pinned() {
  static auto one = new Pinned;  // other threads may use it during process exit
  return *one;
}

// -- GPUs

Gpu* Gpu::of(int number) {
  static std::mutex mutex;
  static auto all = new std::map<int, Gpu*>;
  std::lock_guard<std::mutex> lock(mutex);
  if (auto found = all->find(number); found != all->end()) return found->second;
  const Driver* cuda = driver();
  auto gpu = new Gpu(number);
  (*all)[number] = gpu;
  int device = 0, several = 1, maps = 0;
  if (gpu->check(cuda ? cuda->device_get(&device, number) : 3, "cuDeviceGet") &&
      gpu->check(cuda->retain_context(&gpu->context_, device), "cuDevicePrimaryCtxRetain") &&
      gpu->check(cuda->device_attribute(&several, n_multiprocessors, device), "cuDeviceGetAttribute") &&
      gpu->check(cuda->device_attribute(&maps, uses_host_addresses, device), "cuDeviceGetAttribute"))
    gpu->max_grid_ = 16 * uint32_t(several);
  pinned().use(gpu, maps);
  last_used = number;
  return gpu;
}

DeviceFault Gpu::fault() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return fault_;
}

bool Gpu::check(int code, const char* function) {
  if (!code) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!fault_) fault_ = {code, function, number};
  failed_ = true;
  return false;
}

void Gpu::to_device(Address to, const void* from, uint64_t nbytes, void* stream) {
  if (!failed()) check(driver()->to_device(to, from, nbytes, stream), "cuMemcpyHtoDAsync");
}

void Gpu::rows_to_device(Address to, const uint8_t* from, uint64_t nbytes, uint64_t rows, int64_t stride,
                         void* stream) {
  if (rows == 1 || stride < int64_t(nbytes) || stride > most_pitch) {
    for (uint64_t i = 0; i < rows; i++)
      to_device(to + Address(int64_t(i) * stride), from + int64_t(i) * stride, nbytes, stream);
    return;
  }
  RowsToDevice copy;
  copy.from = from, copy.to = to;
  copy.from_pitch = copy.to_pitch = size_t(stride);
  copy.width = nbytes, copy.rows = rows;
  if (!failed()) check(driver()->rows_to_device(&copy, stream), "cuMemcpy2DAsync");
}

void Gpu::to_host(void* to, Address from, uint64_t nbytes, void* stream) {
  if (!failed()) check(driver()->to_host(to, from, nbytes, stream), "cuMemcpyDtoHAsync");
}

void Gpu::on_device(Address to, Address from, uint64_t nbytes, void* stream) {
  if (!failed()) check(driver()->on_device(to, from, nbytes, stream), "cuMemcpyAsync");
}

void Gpu::clear(Address memory, uint64_t nbytes, void* stream) {
  if (!failed()) check(driver()->set_bytes(memory, 0, nbytes, stream), "cuMemsetD8Async");
}

void Gpu::launch(const Kernel& kernel, unsigned grid_x, unsigned grid_y, Address jobs, void* stream) {
  void* arguments[] = {&jobs};
  if (!failed())
    check(driver()->launch(kernel.function, grid_x, grid_y, 1, kernel.threads, 1, 1, 0, stream, arguments,
                           nullptr),
          "cuLaunchKernel");
}

void Gpu::record(void* event, void* stream) {
  if (!failed()) check(driver()->event_record(event, stream), "cuEventRecord");
}

void Gpu::wait_for(void* event, void* stream) {
  if (!failed()) check(driver()->stream_wait(stream, event, 0), "cuStreamWaitEvent");
}

bool Gpu::has_come(void* event) {
  if (failed()) return true;
  const int code = driver()->event_query(event);
  if (code == not_ready) return false;
  check(code, "cuEventQuery");
  return true;
}

void* Gpu::take(std::vector<void*>* idle, int (*create)(void**, unsigned), unsigned flags,
                const char* function) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!idle->empty()) {
      void* found = idle->back();
      idle->pop_back();
      return found;
    }
  }
  void* made = nullptr;
  if (!failed()) check(create(&made, flags), function);
  return made;
}

void Gpu::put(std::vector<void*>* idle, void* one) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (one) idle->push_back(one);
}

void* Gpu::take_stream() { return take(&streams_, driver()->stream_create, non_blocking, "cuStreamCreate"); }

void* Gpu::take_event() { return take(&events_, driver()->event_create, no_timing, "cuEventCreate"); }

void Gpu::add_kernel(const std::string& name, void* function) {
  std::lock_guard<std::mutex> lock(mutex_);
  kernels_[name] = function;
  generation_++;
}

void* Gpu::find_kernel(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : found->second;
}

void Within::enter(Gpu& gpu) {
  if (gpu_ == &gpu) return;
  restore();
  if (gpu.failed()) return;
  const Driver& cuda = *driver();
  if (!gpu.check(cuda.push_context(gpu.context_), "cuCtxPushCurrent")) return;
  gpu_ = &gpu;
  mode_ = thread_local_mode;
  gpu.check(cuda.capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

void Within::restore() {
  if (!gpu_) return;
  void* context;
  driver()->capture_mode(&mode_);
  driver()->pop_context(&context);
  gpu_ = nullptr;
}

// -- the caller's streams

void set_find_stream(FindStream find) { find_stream = find; }

std::vector<void*> current_streams(int gpu) {
  std::vector<void*> streams;
  find_stream_of_torch(gpu, &streams);
  if (FindStream find = find_stream) find(gpu, &streams);
  if (streams.empty()) streams.push_back(legacy_stream);
  for (void*& stream : streams)
    if (!stream) stream = legacy_stream;
  std::sort(streams.begin(), streams.end());
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  return streams;
}

Marks::~Marks() {
  for (auto [gpu, event] : events_) gpu->put_event(event);
}

bool Marks::record(Gpu* gpu, DeviceFault* fault, const std::vector<void*>& more) {
  for (const auto& one : events_)
    if (one.first == gpu) return true;
  const Driver& cuda = *driver();
  std::vector<void*> streams = current_streams(gpu->number);
  for (void* stream : more)
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  Within within(*gpu);
  for (void* stream : streams) {
    int capturing = 0;
    if (gpu->failed()) break;
    const int code = cuda.stream_is_capturing(stream, &capturing);
    if (code ? code >= first_of_captures && code <= last_of_captures : capturing) {
      *fault = {CAPTURING, "", gpu->number};
      return false;
    }
    if (!gpu->check(code, "cuStreamIsCapturing")) break;
    void* event = gpu->take_event();
    gpu->record(event, stream);
    events_.emplace_back(gpu, event);
  }
  *fault = gpu->fault();
  return !*fault;
}

void Marks::precede(Gpu* gpu, void* stream) const {
  for (auto [from, event] : events_) gpu->wait_for(event, stream);
}

}  // namespace engine
}  // namespace compcoll
