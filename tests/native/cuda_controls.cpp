// Controls of the stand-in for NVIDIA's driver, and state that tests read.
#include "cuda_call.h"

using namespace compcoll::standin;

// Control functions may be called at any time, and are not counted.
#define LOCK                \
  thread().call = __func__; \
  std::lock_guard<std::mutex> lock(driver.mutex)

EXPORT void standin_set_seed(uint64_t seed) {
  LOCK;
  driver.random.seed(seed);
}

// Operations run as soon as they are enqueued.
EXPORT void standin_eager(int on) {
  LOCK;
  driver.eager = on;
}

// Launches and copies do nothing, events are complete, nothing is checked: for benchmarks of callers. Frames
// that are copied to the host get this header of 80 bytes; null: normal operation.
EXPORT void standin_stub(const void* header) {
  if (header) memcpy(stub_header, header, sizeof stub_header);
  stub = header != nullptr;
}

// Copies of unwritten device memory to the host fail.
EXPORT void standin_fail_on_fresh(int on) { fails_on_fresh = on; }

// Makes all calls after the next k fail. k < 0: no call fails.
EXPORT void standin_fail_from(long k, int code) {
  LOCK;
  fail_at = k, fail_code = code, calls = 0;
}

// Launches of a kernel fail. Code 0: they succeed.
EXPORT void standin_fail_launch(const char* name, int code) {
  LOCK;
  if (code) failing_launches[name] = code;
  else failing_launches.erase(name);
}

// The calling thread's calls belong to the test itself: they are not counted, do not fail, and do not wait
// for other streams.
EXPORT void standin_quiet(int change) { thread().quiet += change; }

// Enqueues an operation that ends when `standin_release` is called.
EXPORT int standin_hold(void* handle) {
  LOCK;
  std::shared_ptr<Stream> stream;
  if (int error = DriverCall::check(context)) return error;
  if (int error = find_stream(handle, stream, true)) return error;
  driver.append(stream, {nullptr, {}, false, true});
  return success;
}

EXPORT int standin_release(void* handle) {
  LOCK;
  std::shared_ptr<Stream> stream;
  if (uint64_t(handle) <= 2 && !current()) return invalid_context;
  if (int error = find_stream(handle, stream, true)) return error;
  for (Operation& operation : stream->operations) operation.held = false;
  driver.changed.notify_all();
  return success;
}

// Available bytes of device memory (0) or pinned memory (1); negative: unlimited.
EXPORT void standin_budget(int pinned, int64_t nbytes) {
  LOCK;
  driver.budgets[pinned != 0] = nbytes;
}

// allowed: callers' memory can be registered; maps: kernels reach it at its host addresses.
EXPORT void standin_register(int allowed, int maps) {
  LOCK;
  driver.refuses_registering = !allowed, driver.maps_registered = maps;
}

// Lists names with numbers, one per line: launches of a device's kernels, or (-1) calls of functions. Returns
// the length, even if it exceeds `room`.
EXPORT long standin_list(int device, char* to, long room) {
  LOCK;
  std::string text;
  if (device < 0)
    for (Site* site = Site::first; site; site = site->next)
      if (long n = site->count) text += std::string(site->name) + " " + std::to_string(n) + "\n";
  if (device >= 0 && device < max_devices)
    for (const auto& [name, n] : driver.counts[device].launches)
      text += name + " " + std::to_string(n) + "\n";
  if (long(text.size()) <= room) memcpy(to, text.data(), text.size());
  return long(text.size());
}

// Number of copies between host and device (0), of those with pageable memory (1), and bytes copied to the
// host (2), to the device (3), and between devices (4).
EXPORT long standin_copies(int device, int what) {
  LOCK;
  if (device < 0 || device >= max_devices || what < 0 || what > 4) return -1;
  const Counts& counts = driver.counts[device];
  return what > 1 ? counts.nbytes[what - 2] : what ? counts.pageable : counts.copies;
}

// Numbers of live objects: 0 streams with handles, 1 events, 2 operations, 3 retained primary contexts, 4
// blocks of device memory, 5 blocks of pinned memory; 6 registered bytes.
EXPORT long standin_live(int what) {
  LOCK;
  long n = 0;
  if (what < 2) return long(what ? driver.events.live.size() : driver.streams.live.size());
  if (what == 2)
    for (const auto& stream : driver.active) n += long(stream->operations.size());
  if (what == 3)
    for (const auto& one : driver.contexts) n += one->retains;
  for (const auto& [address, block] : driver.blocks)
    if (what == 6 && block.kind == Kind::registered) n += long(block.size);
  if (what == 4 || what == 5)
    for (const auto& [address, block] : driver.blocks) n += (block.kind == Kind::pinned) == (what == 5);
  return n;
}

// Runs all operations of a device that can run, or (wait) waits for all.
EXPORT void standin_drain(int device, int wait) {
  LOCK;
  if (wait) driver.idle(device);
  while (driver.step(device)) {}
}

// True if no guard and no freed memory was written to, no operation is left, and no fault occurred. Prints
// problems to stderr, and forgets them.
EXPORT int standin_sound() {
  LOCK;
  return driver.sound();
}
