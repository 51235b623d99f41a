// State of the stand-in for NVIDIA's driver (cuda.cpp): contexts, streams of operations, events, and memory.
//
// Operations run when a caller asks whether some work is done: one operation of a random stream for each
// query. A waiting call runs only the operations that it depends on. So no order holds unless the program has
// enforced it.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace compcoll {
namespace standin {

enum Code : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  invalid_device = 101,
  invalid_image = 200,
  invalid_context = 201,
  no_binary = 209,
  file_not_found = 301,
  invalid_handle = 400,
  not_found = 500,
  not_ready = 600,
  registered = 712,
  illegal_address = 700,
  launch_failed = 719,
  not_permitted = 800,
  capture_unsupported = 900,
  capture_invalidated = 901,
  capture_unmatched = 903,
  capture_isolation = 905,
  capture_implicit = 906,
  captured_event = 907
};

struct Stream;

struct Context {
  uint64_t handle;
  int device;
  int retains = 0;
  int error = 0;  // returned by all calls after a fault
  std::shared_ptr<Stream> legacy = {};
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread = {};
};

struct Capture {
  Stream* origin;
  int mode;
  std::thread::id thread;
  bool invalid = false;
};

// A position in a stream.
struct StreamPosition {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
  bool reached() const;
};

struct Operation {
  std::function<void()> run = {};
  std::vector<StreamPosition> after = {};
  bool host = false;  // a function of the caller, which runs without the lock
  bool held = false;  // until `standin_release`
};

struct Stream {
  Context* context;
  bool blocking;
  uint64_t handle = 0;
  std::deque<Operation> operations = {};
  uint64_t appended = 0, finished = 0;
  bool busy = false;
  std::shared_ptr<Capture> capture = nullptr;

  // The stream that the first operation waits for, or null.
  Stream* blocker() const {
    for (const StreamPosition& place : operations.front().after)
      if (!place.reached()) return place.stream.get();
    return nullptr;
  }
  bool stuck() const { return busy || operations.front().held; }
  bool runnable() const { return !operations.empty() && !stuck() && !blocker(); }
};

inline bool StreamPosition::reached() const { return !stream || stream->finished >= number; }

struct Event {
  Context* context;
  StreamPosition place = {};
  bool captured = false;
};

enum class Kind { device, managed, pinned, registered };
inline bool is_hosts(Kind kind) { return kind == Kind::pinned || kind == Kind::registered; }

// Memory with guards on both sides, unless a caller registered it.
struct Block {
  static constexpr uint64_t guard = 512;
  static constexpr uint8_t poison = 0xA5, freed = 0x5A;
  uint8_t* base;
  uint64_t size;
  Kind kind;
  Context* context;

  uint64_t address() const { return uint64_t(base) + guard; }
  uint64_t whole() const { return size + 2 * guard; }
  bool guarded() const { return kind == Kind::registered || has_guards(); }
  bool has_guards() const { return same(0, guard, poison) && same(guard + size, guard, poison); }
  bool same(uint64_t from, uint64_t n, uint8_t value) const {
    const uint8_t* p = base + from;
    return !n || (*p == value && !memcmp(p, p + 1, n - 1));
  }
};

// State of a thread; never freed, because static destructors make calls, too.
struct Thread {
  std::vector<Context*> contexts;
  int in_host_function = 0, quiet = 0;
  int capture_mode = 0;
  const char* call = "?";  // the current function
};
inline Thread& thread() {
  static thread_local Thread* mine = new Thread;
  return *mine;
}

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void die(const char* format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "stand-in for libcuda: %s ", thread().call);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  abort();
}

// Handles increase and are never reused, so that destroyed ones are recognised.
template <class T>
struct Table {
  uint64_t kind, made = 0;
  std::map<uint64_t, std::shared_ptr<T>> live = {};

  void* add(std::shared_ptr<T> thing) {
    const uint64_t handle = kind << 32 | 16 * ++made;
    live[handle] = std::move(thing);
    return reinterpret_cast<void*>(handle);
  }
  std::shared_ptr<T> find(void* handle) const {
    const uint64_t value = uint64_t(handle);
    auto found = live.find(value);
    if (found != live.end()) return found->second;
    const bool made_here = value >> 32 == kind && !(value % 16) && uint32_t(value) / 16 - 1 < made;
    if (made_here && !thread().quiet) die("got the handle %p, which has been destroyed", handle);
    return nullptr;
  }
};

struct Module {
  Context* context;
  void* library;
};
struct Function {
  Context* context;
  void* module;
  std::string name;
  void (*kernel)(const void*);
  void* launch;
};

struct Counts {
  std::map<std::string, long> launches;
  long copies = 0, pageable = 0;
  long nbytes[3] = {};  // copied to the host, to the device, and between devices
};

constexpr int max_devices = 16;

class Driver {
 public:
  std::mutex mutex;
  std::condition_variable_any changed;
  bool initialized = false, eager = false, refuses_registering = false, maps_registered = true;
  int n_devices = 0;
  std::vector<std::unique_ptr<Context>> contexts;  // the primary ones of all devices
  std::vector<std::shared_ptr<Stream>> active;  // streams, including those without handles
  Table<Stream> streams{1};
  Table<Event> events{2};
  Table<Module> modules{3};
  Table<Function> functions{4};
  std::map<uint64_t, Block> blocks;
  int64_t budgets[2] = {-1, -1}, used[2] = {0, 0};  // of device memory and of pinned memory
  Counts counts[max_devices];
  // A call that waits for a held operation or a host function ends the process after so many seconds.
  static constexpr double patience = 20;
  std::mt19937_64 random;

  static Driver& get() {
    static Driver& driver = *new Driver;
    return driver;
  }

  Context* context(const void* handle) const {
    for (const auto& one : contexts)
      if (one->handle == uint64_t(handle)) return one.get();
    return nullptr;
  }
  std::shared_ptr<Stream> make_stream(Context* context, bool blocking) {
    active.push_back(std::make_shared<Stream>(Stream{context, blocking}));
    return active.back();
  }

  // Appends an operation; returns its number, or 0 if the stream is capturing.
  uint64_t append(const std::shared_ptr<Stream>& stream, Operation operation) {
    if (stream->capture) return 0;
    Context* context = stream->context;
    const auto follow = [&](const std::shared_ptr<Stream>& other) {
      if (other->finished < other->appended) operation.after.push_back({other, other->appended});
    };
    if (stream == context->legacy) {
      for (const auto& other : active)
        if (other->context == context && other->blocking && other != stream) follow(other);
    } else if (stream->blocking) {
      follow(context->legacy);
    }
    stream->operations.push_back(std::move(operation));
    const uint64_t number = ++stream->appended;
    if (eager) run_to({stream, number}, false);
    return number;
  }

  // Runs operations until a stream has reached a place. Waits for held ones, or (not wait) returns at such a
  // one.
  void run_to(const StreamPosition& place, bool wait = true) {
    double waited = 0;
    while (!place.reached()) {
      Stream* stream = place.stream.get();
      while (Stream* other = stream->busy ? nullptr : stream->blocker()) stream = other;
      if (!stream->stuck()) {
        run_first(*stream);
        waited = 0;
      } else if (!wait) {
        return;
      } else {
        if (waited >= patience)
          die("would wait for ever: %s",
              stream->busy ? "a host function does not return" : "an operation of a stream is held");
        const double interval = std::min(patience - waited, 0.5);
        changed.wait_for(mutex, std::chrono::duration<double>(interval));
        waited += interval;
      }
    }
  }

  // Runs one operation of any stream of a device, or of all devices (-1); false if none can run.
  bool step(int device = -1) {
    std::vector<Stream*> able;
    for (const auto& stream : active)
      if ((device < 0 || stream->context->device == device) && stream->runnable())
        able.push_back(stream.get());
    if (able.empty()) return false;
    run_first(*able[random() % able.size()]);
    return true;
  }

  // Waits for all streams of a device, whose operations run in a random order.
  void idle(int device) {
    std::vector<StreamPosition> places;
    for (const auto& stream : active)
      if (stream->context->device == device && stream->finished < stream->appended)
        places.push_back({stream, stream->appended});
    while (!places.empty()) {
      const size_t i = random() % places.size();
      run_to({places[i].stream, std::min(places[i].number, places[i].stream->finished + 1)});
      if (places[i].reached()) places.erase(places.begin() + std::ptrdiff_t(i));
    }
  }

  int allocate(Kind kind, Context* context, uint64_t size, uint64_t* address) {
    const int which = kind == Kind::pinned;
    if (!size) return invalid_value;
    if (budgets[which] >= 0 && used[which] + int64_t(size) > budgets[which]) return out_of_memory;
    void* base;
    if (posix_memalign(&base, Block::guard, size + 2 * Block::guard)) return out_of_memory;
    const Block block{static_cast<uint8_t*>(base), size, kind, context};
    memset(base, Block::poison, block.whole());
    used[which] += int64_t(size);
    blocks.emplace(block.address(), block);
    *address = block.address();
    return success;
  }

  // Registers the caller's memory, which then counts as pinned and has all of its pages.
  int add(Context* context, uint8_t* memory, uint64_t size) {
    if (refuses_registering || at(uint64_t(memory), size))
      return refuses_registering ? not_permitted : registered;
    const Block block{memory - Block::guard, size, Kind::registered, context};
    for (uint64_t i = 0; i < size; i += 4096) (void)*const_cast<volatile uint8_t*>(memory + i);
    blocks.emplace(block.address(), block);
    used[1] += int64_t(size);
    return success;
  }

  // The memory block that contains these bytes; for zero bytes, the end of a block is allowed.
  const Block* at(uint64_t address, uint64_t nbytes) const {
    auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return nullptr;
    const Block& block = std::prev(after)->second;
    const uint64_t offset = address - block.address();
    return offset <= block.size && nbytes <= block.size - offset ? &block : nullptr;
  }

  // Frees memory, which keeps a pattern for a while.
  std::map<uint64_t, Block>::iterator release(std::map<uint64_t, Block>::iterator where) {
    const Block block = where->second;
    if (!block.guarded()) report("memory at %#lx: its guards were written to", block.address());
    memset(block.base, Block::freed, block.whole());
    used[block.kind == Kind::pinned] -= int64_t(block.size);
    freed_.push_back(block);
    freed_nbytes_ += block.whole();
    for (; freed_nbytes_ > (64 << 20); freed_.pop_front()) {
      check_freed(freed_.front());
      freed_nbytes_ -= freed_.front().whole();
      free(freed_.front().base);
    }
    return blocks.erase(where);
  }

  // Records a problem that makes a test fail, at `standin_sound`.
  __attribute__((format(printf, 2, 3))) void report(const char* format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "stand-in for libcuda: %s\n", text);
    problems_ += std::string(text) + "\n";
  }
  void fault(Context* context, int code, const std::string& text) {
    report("%s", text.c_str());
    if (!context->error) context->error = code;
  }

  // True if no forbidden memory was written to and nothing went wrong; forgets the problems.
  bool sound() {
    for (auto& [address, block] : blocks)
      if (!block.guarded()) {
        report("memory at %#lx: its guards were written to", address);
        memset(block.base, Block::poison, Block::guard);
        memset(block.base + Block::guard + block.size, Block::poison, Block::guard);
      }
    for (const Block& block : freed_) check_freed(block);
    for (const auto& stream : active)
      if (!stream->operations.empty())
        report("a stream of device %d has %zu operations left", stream->context->device,
               stream->operations.size());
    const bool fine = problems_.empty();
    problems_.clear();
    return fine;
  }

 private:
  void run_first(Stream& stream) {
    const std::shared_ptr<Stream> keep = share(stream);
    stream.busy = true;
    Operation operation = std::move(stream.operations.front());
    stream.operations.front() = {};
    const bool host = operation.host && !stream.context->error;  // no host function is called after a fault
    if (host) {
      mutex.unlock();
      thread().in_host_function++;
    }
    if (operation.run && host == operation.host) operation.run();
    if (host) {
      thread().in_host_function--;
      mutex.lock();
    }
    stream.busy = false;
    stream.operations.pop_front(), stream.finished++;
    changed.notify_all();
  }
  std::shared_ptr<Stream> share(const Stream& stream) const {
    for (const auto& one : active)
      if (one.get() == &stream) return one;
    return nullptr;
  }
  void check_freed(const Block& block) {
    if (block.same(0, block.whole(), Block::freed)) return;
    report("memory at %#lx was written to after it was freed", block.address());
    memset(block.base, Block::freed, block.whole());
  }

  std::deque<Block> freed_;
  uint64_t freed_nbytes_ = 0;
  std::string problems_;
};

}  // namespace standin
}  // namespace compcoll
