// A stand-in for NVIDIA's driver library, for tests on machines without GPUs. tests/serial/standin.py builds
// it with the soname libcuda.so.1: loading a library of that name later returns this one.
//
// Kernels run in the CPU executor (tests/native/executor.h); every module's image is the executor's path.
// Misuse that the driver reports has the driver's error; undefined behaviour ends the process with a message.
#include <unistd.h>

#include "cuda_call.h"

using namespace compcoll::standin;

namespace {

#define ENTER_DEVICE(device) \
  ENTER(nothing);            \
  if (!is_device_number(device)) return invalid_device

#define ENTER_STREAM(needs, find) \
  ENTER(needs);                   \
  std::shared_ptr<Stream> stream; \
  if (int error = find) return error

// The capture that forbids using a legacy stream, or null.
Capture* captures_beside(const Stream& stream) {
  if (&stream != stream.context->legacy.get()) return nullptr;
  for (const auto& other : driver.active)
    if (other->capture && other->context == stream.context && other->blocking) return other->capture.get();
  return nullptr;
}

// The stream of a handle, for an operation.
int find_target(void* handle, std::shared_ptr<Stream>& stream, bool any_context = false) {
  if (int error = find_stream(handle, stream, any_context)) return error;
  if (stream->capture && stream->capture->invalid) return capture_invalidated;
  Capture* beside = captures_beside(*stream);
  if (beside) beside->invalid = true;
  return beside ? capture_implicit : success;
}

// The stream of a handle, for a wait, which ends a capture of it.
int find_waited(void* handle, std::shared_ptr<Stream>& stream) {
  if (int error = find_target(handle, stream)) return error;
  if (stream->capture) stream->capture->invalid = true;
  return stream->capture ? capture_unsupported : success;
}

// Waits as the driver does in calls that allocate, free, or load.
void wait_for_device() {
  if (!thread().quiet) driver.idle(current()->device);
}

bool is_device(const Block* block) { return block && !is_hosts(block->kind); }

// True if eight adjacent bytes, at a multiple of eight from `from`, hold the pattern of fresh device memory.
bool is_fresh(uint64_t from, uint64_t nbytes) {
  constexpr uint64_t word = Block::poison * uint64_t(0x0101010101010101);
  for (uint64_t i = 0, found; i + 8 <= nbytes; i += 8) {
    memcpy(&found, reinterpret_cast<const void*>(from + i), 8);
    if (found == word) return true;
  }
  return false;
}

int put_copy(uint64_t to, uint64_t from, uint64_t nbytes, void* handle, bool to_device, bool from_device,
             bool any_kind, uint64_t rows = 1, uint64_t to_pitch = 0, uint64_t from_pitch = 0) {
  std::shared_ptr<Stream> stream;
  if (int error = find_target(handle, stream, true)) return error;
  if (!nbytes || !rows) return success;
  const uint64_t to_nbytes = nbytes + (rows - 1) * to_pitch, from_nbytes = nbytes + (rows - 1) * from_pitch;
  const Block *target = driver.at(to, to_nbytes), *source = driver.at(from, from_nbytes);
  if ((!target && driver.at(to, 1)) || (!source && driver.at(from, 1))) return invalid_value;
  if (!any_kind && (is_device(target) != to_device || is_device(source) != from_device)) return invalid_value;
  const bool pageable = !target || !source;
  if (!thread().quiet) {
    Counts& counts = driver.counts[stream->context->device];
    const bool between = is_device(target) && is_device(source);
    counts.nbytes[between ? 2 : is_device(target)] += long(nbytes * rows);
    counts.copies += !between;
    counts.pageable += !between && pageable;
  }
  const bool known[] = {target != nullptr, source != nullptr};
  Context* context = stream->context;
  const uint64_t number = driver.append(
      stream, {[=] {
        if (context->error) return;
        if ((known[0] && !driver.at(to, to_nbytes)) || (known[1] && !driver.at(from, from_nbytes)))
          return driver.fault(context, illegal_address,
                              "a copy reads or writes memory that was freed before it ran");
        if (fails_on_fresh && from_device && !to_device && is_fresh(from, nbytes))
          return driver.fault(context, launch_failed,
                              "a copy to the host reads memory that nothing has written");
        for (uint64_t i = 0; i < rows; i++)
          memmove(reinterpret_cast<void*>(to + i * to_pitch), reinterpret_cast<void*>(from + i * from_pitch),
                  nbytes);
      }});
  if (pageable && number) driver.run_to({stream, number});
  return success;
}

// True if kernels in a context may access an address.
bool reachable(const Context* context, uint64_t address, uint64_t nbytes) {
  const Block* block = driver.at(address, nbytes);
  if (block && block->kind == Kind::registered && !driver.maps_registered) return false;
  return block && (block->kind != Kind::device || block->context->device == context->device);
}

// Describes the first fault in the jobs of a launch; the addresses are those in struct Job of
// csrc/cuda/job.cuh.
std::string check_addresses(const Context* context, uint64_t jobs, unsigned n) {
  constexpr int words = 8;
  static const std::pair<int, const char*> addresses[] = {
      {0, "src"}, {1, "dst"}, {6, "result"}, {7, "scratch"}};
  if (!reachable(context, jobs, 8ull * words * n))
    return "the jobs are not in memory that the device reaches";
  for (unsigned i = 0; i < n; i++)
    for (auto [word, name] : addresses) {
      const uint64_t address = reinterpret_cast<const uint64_t*>(jobs)[i * words + unsigned(word)];
      if (address && !reachable(context, address, 0))
        return std::string(name) + " of job " + std::to_string(i) +
               " is not in memory that the device reaches";
    }
  return "";
}

void run_kernel(const Function& function, unsigned grid_x, unsigned grid_y, unsigned threads, uint64_t jobs) {
  Context* context = function.context;
  if (context->error) return;
  if (std::string problem = check_addresses(context, jobs, grid_y); !problem.empty())
    return driver.fault(context, illegal_address, function.name + ": " + problem);
  const auto launch = reinterpret_cast<const char* (*)(void (*)(const void*), unsigned, unsigned, unsigned,
                                                       const void*, int, uint64_t, int)>(function.launch);
  const uint64_t seed = 1 + driver.random() % 1000000000;
  const bool flush = function.name.find("f64") == std::string::npos;
  const char* problem =
      launch(function.kernel, grid_x, grid_y, threads, reinterpret_cast<const void*>(jobs), flush, seed, 6);
  if (problem)
    driver.fault(context, launch_failed, function.name + ", seed " + std::to_string(seed) + ": " + problem);
}

int load_module(void** module, const char* path, int missing) {
  wait_for_device();
  if (access(path, R_OK)) return missing;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library || !dlsym(library, "executor_launch")) return no_binary;
  *module = driver.modules.add(std::make_shared<Module>(Module{current(), library}));
  return success;
}

bool is_device_number(int device) { return device >= 0 && device < driver.n_devices; }

}  // namespace

// Devices.

EXPORT int cuInit(unsigned) {
  ENTER(no_init);
  if (driver.initialized) return success;
  const char* n = getenv("COMPCOLL_STANDIN_DEVICES");
  driver.n_devices = n ? std::min(atoi(n), max_devices) : 2;
  if (driver.n_devices < 1) return 100;
  for (int i = 0; i < driver.n_devices; i++)
    driver.contexts.emplace_back(new Context{uint64_t(0x500000000) + 16 * uint64_t(i + 1), i});
  driver.initialized = true;
  return success;
}

EXPORT int cuDriverGetVersion(int* version) {
  ENTER(nothing);
  *version = 13000;
  return success;
}

EXPORT int cuDeviceGetCount(int* count) {
  ENTER(nothing);
  *count = driver.n_devices;
  return success;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  ENTER(nothing);
  if (!is_device_number(ordinal)) return invalid_device;
  *device = ordinal;
  return success;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER_DEVICE(device);
  // Multiprocessors, unified addresses, the compute capability, and whether kernels access registered memory
  // at its host addresses.
  *value = attribute == 16 || attribute == 41 ? 1 : attribute == 75 ? 9 : 0;
  if (attribute == 91) *value = driver.maps_registered;
  return success;
}

EXPORT int cuDeviceTotalMem_v2(size_t* nbytes, int device) {
  ENTER_DEVICE(device);
  *nbytes = driver.budgets[0] < 0 ? size_t(1) << 30 : size_t(driver.budgets[0]);
  return success;
}

// Contexts.

EXPORT int cuDevicePrimaryCtxRetain(void** handle, int device) {
  ENTER_DEVICE(device);
  Context* primary = driver.contexts[size_t(device)].get();
  if (!primary->retains++) primary->legacy = driver.make_stream(primary, true);
  *handle = reinterpret_cast<void*>(primary->handle);
  return success;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  ENTER_DEVICE(device);
  *flags = 0;
  *active = driver.contexts[size_t(device)]->retains > 0;
  return success;
}

EXPORT int cuCtxPushCurrent_v2(void* handle) {
  ENTER(nothing);
  Context* one = driver.context(handle);
  if (!one) return invalid_context;
  thread().contexts.push_back(one);
  return success;
}

EXPORT int cuCtxPopCurrent_v2(void** handle) {
  ENTER(nothing);
  if (!current()) return invalid_context;
  if (handle) *handle = reinterpret_cast<void*>(current()->handle);
  thread().contexts.pop_back();
  return success;
}

EXPORT int cuCtxGetCurrent(void** handle) {
  ENTER(nothing);
  *handle = current() ? reinterpret_cast<void*>(current()->handle) : nullptr;
  return success;
}

EXPORT int cuCtxSetCurrent(void* handle) {
  ENTER(nothing);
  Context* one = driver.context(handle);
  if (handle && !one) return invalid_context;
  if (current()) thread().contexts.pop_back();
  if (one) thread().contexts.push_back(one);
  return success;
}

EXPORT int cuCtxGetDevice(int* device) {
  ENTER(context);
  *device = current()->device;
  return success;
}

// Memory.

static int get_attribute(void* data, int attribute, const Block* block) {
  uint64_t value = 0;
  int nbytes = 4;
  switch (attribute) {
    case 1: value = block ? block->context->handle : 0, nbytes = 8; break;
    case 2: value = !block ? 0 : is_hosts(block->kind) ? 1 : 2; break;
    case 8: value = block && block->kind == Kind::managed; break;
    case 9: value = uint64_t(block ? block->context->device : -2); break;
    default: return invalid_value;
  }
  memcpy(data, &value, size_t(nbytes));
  return success;
}

EXPORT int cuPointerGetAttribute(void* data, int attribute, uint64_t address) {
  ENTER(nothing);
  const Block* block = driver.at(address, 1);
  return block ? get_attribute(data, attribute, block) : invalid_value;
}

EXPORT int cuPointerGetAttributes(unsigned n, int* attributes, void** data, uint64_t address) {
  ENTER(nothing);
  const Block* block = driver.at(address, 1);
  for (unsigned i = 0; i < n; i++)
    if (int error = get_attribute(data[i], attributes[i], block)) return error;
  return success;
}

EXPORT int cuMemAlloc_v2(uint64_t* address, size_t nbytes) {
  ENTER(context | no_capture);
  wait_for_device();
  return driver.allocate(Kind::device, current(), nbytes, address);
}

EXPORT int cuMemAllocManaged(uint64_t* address, size_t nbytes, unsigned) {
  ENTER(context | no_capture);
  wait_for_device();
  return driver.allocate(Kind::managed, current(), nbytes, address);
}

EXPORT int cuMemHostAlloc(void** address, size_t nbytes, unsigned) {
  ENTER(context | no_capture);
  wait_for_device();
  return driver.allocate(Kind::pinned, current(), nbytes, reinterpret_cast<uint64_t*>(address));
}

EXPORT int cuMemHostRegister_v2(void* address, size_t nbytes, unsigned) {
  ENTER(context | no_capture);
  wait_for_device();
  return driver.add(current(), static_cast<uint8_t*>(address), nbytes);
}

static int release(uint64_t address, bool pinned) {
  auto found = driver.blocks.find(address);
  if (found == driver.blocks.end() || (found->second.kind == Kind::pinned) != pinned) return invalid_value;
  if (!pinned && found->second.context != current()) return invalid_handle;
  wait_for_device();
  found = driver.blocks.find(address);  // another thread may have run meanwhile
  if (found == driver.blocks.end()) die("frees the memory at %#lx, which another thread frees", address);
  driver.release(found);
  return success;
}

EXPORT int cuMemFree_v2(uint64_t address) {
  ENTER(context | no_capture);
  return address ? release(address, false) : success;
}

EXPORT int cuMemFreeHost(void* address) {
  ENTER(context | no_capture);
  return release(uint64_t(address), true);
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t nbytes, void* stream) {
  if (stub) return success;
  ENTER(context);
  return put_copy(to, uint64_t(from), nbytes, stream, true, false, false);
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t nbytes, void* stream) {
  if (stub) {
    constexpr size_t results = 160;  // sizeof(Result) of csrc/cuda/job.cuh; results are not changed
    if (nbytes >= sizeof stub_header && nbytes % results) memcpy(to, stub_header, sizeof stub_header);
    return success;
  }
  ENTER(context);
  return put_copy(uint64_t(to), from, nbytes, stream, false, true, false);
}

// Rows from the host to a device only.
struct Rows {
  size_t from_x, from_y;
  int from_type;
  const void* from;
  uint64_t from_device;
  void* from_array;
  size_t from_pitch, to_x, to_y;
  int to_type;
  void* to_host;
  uint64_t to;
  void* to_array;
  size_t to_pitch, width, rows;
};

EXPORT int cuMemcpy2DAsync_v2(const void* given, void* stream) {
  if (stub) return success;
  ENTER(context);
  const Rows& copy = *static_cast<const Rows*>(given);
  if (copy.from_type != 1 || copy.to_type != 2 || copy.width > std::min(copy.from_pitch, copy.to_pitch))
    return invalid_value;
  return put_copy(copy.to, uint64_t(copy.from), copy.width, stream, true, false, false, copy.rows,
                  copy.to_pitch, copy.from_pitch);
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t nbytes, void* stream) {
  if (stub) return success;
  ENTER(context);
  return put_copy(to, from, nbytes, stream, true, true, false);
}

EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t nbytes, void* stream) {
  if (stub) return success;
  ENTER(context);
  return put_copy(to, from, nbytes, stream, true, true, true);
}

EXPORT int cuMemsetD8Async(uint64_t to, unsigned char value, size_t nbytes, void* handle) {
  if (stub) return success;
  ENTER_STREAM(context, find_target(handle, stream));
  if (!nbytes) return success;
  if (!driver.at(to, nbytes)) return invalid_value;
  if (!reachable(current(), to, nbytes)) return invalid_handle;
  Context* context = current();
  driver.append(stream, {[=] {
                  if (context->error) return;
                  if (!driver.at(to, nbytes))
                    return driver.fault(context, illegal_address,
                                        "a memset writes memory that was freed before it ran");
                  memset(reinterpret_cast<void*>(to), value, nbytes);
                }});
  return success;
}

// Streams.

EXPORT int cuStreamCreate(void** handle, unsigned flags) {
  ENTER(context);
  if (flags > 1) return invalid_value;
  *handle = driver.streams.add(driver.make_stream(current(), !flags));
  return success;
}

EXPORT int cuStreamDestroy_v2(void* handle) {
  ENTER(context);
  std::shared_ptr<Stream> stream;
  if (uint64_t(handle) <= 2) return invalid_handle;
  if (int error = find_stream(handle, stream)) return error;
  if (stream->capture) return capture_unsupported;
  wait_for_device();
  driver.run_to({stream, stream->appended});
  driver.active.erase(std::find(driver.active.begin(), driver.active.end(), stream));
  driver.streams.live.erase(uint64_t(handle));
  return success;
}

EXPORT int cuStreamWaitEvent(void* handle, void* event_handle, unsigned) {
  if (stub) return success;
  ENTER_STREAM(context, find_target(handle, stream));
  const auto event = driver.events.find(event_handle);
  if (!event) return invalid_handle;
  if (event->captured)  // the capture includes the stream from now on
    stream->capture = event->place.stream->capture;
  else if (stream->capture) return capture_isolation;
  else if (event->place.stream) driver.append(stream, {nullptr, {event->place}});
  return success;
}

EXPORT int cuStreamQuery(void* handle) {
  if (stub) return success;
  ENTER_STREAM(context | no_capture, find_waited(handle, stream));
  const StreamPosition place{stream, stream->appended};
  driver.step();
  return stream->context->error ? stream->context->error : place.reached() ? success : not_ready;
}

EXPORT int cuStreamSynchronize(void* handle) {
  if (stub) return success;
  ENTER_STREAM(context | no_capture, find_waited(handle, stream));
  driver.run_to({stream, stream->appended});
  return stream->context->error;
}

EXPORT int cuStreamIsCapturing(void* handle, int* status) {
  ENTER_STREAM(context, find_stream(handle, stream));
  if (captures_beside(*stream)) return capture_implicit;
  *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
  return success;
}

EXPORT int cuStreamBeginCapture_v2(void* handle, int mode) {
  ENTER_STREAM(context, find_target(handle, stream));
  if (stream == current()->legacy || stream->capture) return capture_unsupported;
  stream->capture = std::make_shared<Capture>(Capture{stream.get(), mode, std::this_thread::get_id()});
  return success;
}

EXPORT int cuStreamEndCapture(void* handle, void** graph) {
  ENTER_STREAM(context, find_stream(handle, stream));
  const auto capture = stream->capture;
  if (!capture || capture->origin != stream.get()) return capture_unmatched;
  for (const auto& other : driver.active)
    if (other->capture == capture) other->capture.reset();
  *graph = capture->invalid ? nullptr : reinterpret_cast<void*>(0x700000010);
  return capture->invalid ? capture_invalidated : success;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER(nothing);
  std::swap(*mode, thread().capture_mode);
  return success;
}

EXPORT int cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
  if (stub) return function(data), success;
  ENTER_STREAM(context, find_target(handle, stream));
  driver.append(stream, {[=] { function(data); }, {}, true});
  return success;
}

// Events.

EXPORT int cuEventCreate(void** handle, unsigned) {
  ENTER(context);
  *handle = driver.events.add(std::make_shared<Event>(Event{current()}));
  return success;
}

EXPORT int cuEventRecord(void* event_handle, void* handle) {
  if (stub) return success;
  ENTER_STREAM(context, find_target(handle, stream, true));
  const auto event = driver.events.find(event_handle);
  if (!event || event->context != stream->context) return invalid_handle;
  event->captured = stream->capture != nullptr;
  event->place = {stream, driver.append(stream, {})};
  return success;
}

EXPORT int cuEventQuery(void* handle) {
  if (stub) return success;
  ENTER(context | no_capture);
  const auto event = driver.events.find(handle);
  if (!event) return invalid_handle;
  if (event->captured) return captured_event;
  const StreamPosition place = event->place;
  driver.step();
  return event->context->error ? event->context->error : place.reached() ? success : not_ready;
}

EXPORT int cuEventSynchronize(void* handle) {
  if (stub) return success;
  ENTER(context | no_capture);
  const auto event = driver.events.find(handle);
  if (!event) return invalid_handle;
  if (event->captured) return captured_event;
  driver.run_to(StreamPosition(event->place));
  return event->context->error;
}

EXPORT int cuEventDestroy_v2(void* handle) {
  ENTER(context);
  const auto event = driver.events.find(handle);
  if (!event || event->context != current()) return invalid_handle;
  wait_for_device();
  driver.events.live.erase(uint64_t(handle));
  return success;
}

// Modules and kernels.

EXPORT int cuModuleLoad(void** module, const char* path) {
  ENTER(context | no_capture);
  return load_module(module, path, file_not_found);
}

EXPORT int cuModuleLoadData(void** module, const void* image) {
  ENTER(context | no_capture);
  return load_module(module, static_cast<const char*>(image), invalid_image);
}

EXPORT int cuModuleGetFunction(void** function, void* handle, const char* name) {
  ENTER(context | no_capture);
  const auto module = driver.modules.find(handle);
  if (!module || module->context != current()) return invalid_handle;
  wait_for_device();
  void* found = dlsym(module->library, name);
  if (!found) return not_found;
  *function = driver.functions.add(std::make_shared<Function>(
      Function{current(), handle, name, reinterpret_cast<void (*)(const void*)>(found),
               dlsym(module->library, "executor_launch")}));
  return success;
}

EXPORT int cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned threads,
                          unsigned block_y, unsigned block_z, unsigned shared, void* stream_handle,
                          void** parameters, void** extra) {
  if (stub) return success;
  ENTER_STREAM(context, find_target(stream_handle, stream));
  const auto function = driver.functions.find(handle);
  if (!function || function->context != current()) return invalid_handle;
  if (!grid_x || !grid_y || grid_y > 65535 || grid_z != 1 || !threads || threads > 512 || block_y != 1 ||
      block_z != 1 || shared || !parameters || extra)
    return invalid_value;
  const auto failing = failing_launches.find(function->name);
  if (failing != failing_launches.end()) return failing->second;
  uint64_t jobs;
  memcpy(&jobs, parameters[0], sizeof jobs);
  driver.counts[current()->device].launches[function->name]++;
  driver.append(stream, {[=] { run_kernel(*function, grid_x, grid_y, threads, jobs); }});
  return success;
}

// Errors.

EXPORT int cuGetErrorName(int code, const char** text) {
  static thread_local char name[40];
  snprintf(name, sizeof name, "CUDA_ERROR_%d", code);
  *text = name;
  return success;
}
