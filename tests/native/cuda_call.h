// The beginning of every function in the stand-in for NVIDIA's driver.
#pragma once
#include <atomic>
#include <dlfcn.h>

#include "cuda_state.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace compcoll {
namespace standin {

inline Driver& driver = Driver::get();

// A function of the library, and its number of calls.
struct Site {
  const char* name;
  std::atomic<long> count{0};
  Site* next;
  static inline std::atomic<Site*> first{nullptr};
  explicit Site(const char* name) : name(name), next(first) {
    while (!first.compare_exchange_weak(next, this)) {}
  }
};

inline std::atomic<bool> stub{false}, fails_on_fresh{false};
inline uint8_t stub_header[80];
inline long fail_at = -1, calls = 0;
inline int fail_code = 0;
inline std::map<std::string, int> failing_launches;

// True if this thread holds the lock of a Python interpreter in this process.
inline bool has_interpreter() {
  static std::atomic<void*> functions[2];
  static const char* const names[] = {"Py_IsInitialized", "PyGILState_Check"};
  for (int i = 0; i < 2; i++) {
    if (!functions[i]) functions[i] = dlsym(RTLD_DEFAULT, names[i]);
    if (!functions[i] || !reinterpret_cast<int (*)()>(functions[i].load())()) return false;
  }
  return true;
}

inline Context* current() { return thread().contexts.empty() ? nullptr : thread().contexts.back(); }

// True if a capture forbids a call that is unsafe for it; such captures become invalid.
inline bool capture_forbids() {
  bool found = false;
  if (thread().capture_mode == 2) return false;
  for (const auto& stream : driver.active) {
    Capture* capture = stream->capture.get();
    if (!capture || capture->mode == 2) continue;
    if (capture->thread != std::this_thread::get_id() && (capture->mode || thread().capture_mode)) continue;
    capture->invalid = found = true;
  }
  return found;
}

enum Needs { nothing = 0, context = 1, no_capture = 2, no_init = 4 };

// One call of a function: holds the lock, counts the call, and makes the checks that all functions share.
struct DriverCall {
  int error = success;
  DriverCall(Site& site, int needs) {
    Thread& mine = thread();
    mine.call = site.name;
    if (!stub && !mine.in_host_function && !mine.quiet && has_interpreter())
      die("is called by a thread that has the interpreter's lock");
    driver.mutex.lock();
    if (!mine.quiet && !stub) {
      site.count++;
      if (fail_at >= 0 && calls++ >= fail_at) {
        error = fail_code;
        return;
      }
    }
    error = check(needs);
  }
  ~DriverCall() { driver.mutex.unlock(); }
  DriverCall(const DriverCall&) = delete;

  static int check(int needs) {
    if (!driver.initialized && !(needs & no_init)) return not_initialized;
    if (thread().in_host_function && !thread().quiet) return not_permitted;
    if (needs & context) {
      if (!current()) return invalid_context;
      if (current()->error) return current()->error;
    }
    return needs & no_capture && capture_forbids() ? capture_unsupported : success;
  }
};

#define ENTER(needs)            \
  static Site site(__func__);   \
  DriverCall call(site, needs); \
  if (call.error) return call.error

// The stream of a handle: 0 and 1 are the context's legacy stream, 2 is the thread's.
inline int find_stream(void* handle, std::shared_ptr<Stream>& stream, bool any_context = false) {
  Context* context = current();
  if (uint64_t(handle) <= 1) {
    stream = context->legacy;
  } else if (uint64_t(handle) == 2) {
    auto& mine = context->per_thread[std::this_thread::get_id()];
    if (!mine) mine = driver.make_stream(context, true);
    stream = mine;
  } else {
    stream = driver.streams.find(handle);
    if (!stream || (stream->context != context && !any_context)) return invalid_handle;
    if (stream->context->error) return stream->context->error;
  }
  return success;
}

}  // namespace standin
}  // namespace compcoll
