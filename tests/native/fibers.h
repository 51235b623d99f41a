// The threads of a launch as fibers of one CPU thread, and the order in which they run. For executor.h.
//
// The seed determines the order. 0 runs block after block, each warp in turn. Any other seed admits a few
// blocks at a time in a random order, as a GPU does, and lets them and their warps advance unevenly, and the
// lanes of a warp run up or down between two barriers, so that each meets unfinished work of others. A block
// that has called pause() shares the processor with others afterwards; before, it runs alone. Deadlocks are
// reported: a barrier that some threads never reach, and a wait for a value that no admitted block will
// publish.
//
// Faults that a GPU would ignore are reported with their position, too: threads that meet at barriers of
// different kinds or at different positions, and accesses beside a shared variable, where pages without
// access are (executor.h has the compiler's checks). Execution between two barriers is not interleaved.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace executor {

struct Dim { unsigned x, y; };
inline Dim thread_index, block_index, grid_size;

constexpr int max_threads = 512, max_resident = 48, stack_nbytes = 64 << 10;
constexpr int patience = 200;  // rounds after which blocks that wait for each other are a deadlock

struct Fiber {
  ucontext_t context;
  jmp_buf state;
  bool started, done;
};

// Position of a thread in the source.
struct SourceLocation {
  const char *what, *file;
  int line;
  bool operator!=(const SourceLocation& other) const {
    return line != other.line || strcmp(what, other.what) || strcmp(file, other.file);
  }
};

// A barrier for a group of threads.
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
  SourceLocation place = {};  // of the first thread to arrive
};

// A shared variable that ends at a page without access. The rest of its first page is filled with a pattern.
struct Shared {
  static constexpr size_t page = 4096;
  unsigned launch = 0, block = 0;  // the owner
  char *pages = nullptr, *data = nullptr;
  size_t nbytes = 0;

  Shared() = default;
  Shared(Shared&& other) noexcept { *this = std::move(other); }
  Shared& operator=(Shared&& other) noexcept {
    std::swap(launch, other.launch), std::swap(block, other.block), std::swap(pages, other.pages);
    std::swap(data, other.data), std::swap(nbytes, other.nbytes);
    return *this;
  }
  ~Shared() {
    if (pages) munmap(pages, nbytes);
  }
  void make(size_t size) {
    const size_t inner = (size + page - 1) / page * page;
    nbytes = inner + 2 * page;
    pages = static_cast<char*>(mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (pages == MAP_FAILED || mprotect(pages + page, inner, PROT_READ | PROT_WRITE)) abort();
    data = pages + page + inner - size;
    memset(pages + page, 0x3C, size_t(data - pages) - page);
  }
  bool has(const void* p) const { return pages && p >= pages && p < pages + nbytes; }
  bool untouched() const {
    for (const char* p = pages + page; p < data; p++)
      if (*p != 0x3C) return false;
    return true;
  }
};

struct Block {
  Dim index;
  Fiber fibers[max_threads];
  std::unique_ptr<char[]> stacks{new char[size_t(max_threads) * stack_nbytes]};
  uint64_t slots[max_threads];
  Barrier barrier, warps[max_threads / 32];
  std::vector<Shared> shared;
  unsigned number = 0, asleep = 0;  // a bit for each warp
  bool running = false, waiting;
};

inline std::unique_ptr<Block> blocks[max_resident];
inline Block* block;
inline int current, n_threads, shared_variables;
inline jmp_buf scheduler;
inline bool moved, interleaved;
inline char problem[400];  // error message of the launch, or empty
inline unsigned launches, started, stalled;
inline uint64_t state;  // of the random numbers; 0: none are used
inline void (*kernel)(const void*);
inline const void* argument;

inline unsigned random(unsigned below) {
  if (!state) return 0;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return unsigned((state >> 33) % below);
}

inline void yield() {
  if (!_setjmp(block->fibers[current].state)) _longjmp(scheduler, 1);
}

// Ends the launch with an error, from one of its threads.
template <class... Args>
[[noreturn]] void fail(const char* format, Args... args) {
  const int n = snprintf(problem, sizeof problem, "thread %d of block %u, %u: ", current, block->index.x,
                         block->index.y);
  snprintf(problem + n, sizeof problem - size_t(n), format, args...);
  _longjmp(scheduler, 1);
}

inline void wait(Barrier& barrier, int of, SourceLocation place) {
  unsigned generation = barrier.generation;
  if (!barrier.arrived) barrier.place = place;
  else if (barrier.place != place)
    fail("%s at %s:%d, while others wait in %s at %s:%d", place.what, place.file, place.line,
         barrier.place.what, barrier.place.file, barrier.place.line);
  moved = true;
  if (++barrier.arrived == of) {
    barrier.arrived = 0;
    barrier.generation++;
    return;
  }
  while (barrier.generation == generation) yield();
  moved = true;
}

inline void warp_wait(SourceLocation place) { wait(block->warps[current / 32], 32, place); }
inline void block_wait(SourceLocation place) { wait(block->barrier, n_threads, place); }

// Yields where blocks communicate, so that others may run first.
inline void pause() {
  interleaved = true;
  if (random(4)) return;
  moved = true;
  yield();
}
// Yields in a loop that waits for another thread's value.
inline void waits() {
  block->waiting = true;
  moved = true;
  yield();
}
// A value was published, so waiting blocks may proceed.
inline void published() {
  stalled = 0;
  for (auto& b : blocks)
    if (b) b->waiting = false;
}

// Memory of a block, undefined at its start; one variable for each Tag.
template <class T, class Tag>
T& shared(Tag) {
  static const int id = shared_variables++;
  if (int(block->shared.size()) <= id) block->shared.resize(size_t(id) + 1);
  Shared& s = block->shared[size_t(id)];
  if (!s.data) s.make(sizeof(T));
  if (s.launch != launches || s.block != block->number) memset(s.data, 0xA5, sizeof(T));
  s.launch = launches, s.block = block->number;
  return *reinterpret_cast<T*>(s.data);
}

// Handler of access faults: ends the launch if a thread accessed memory beside a shared variable.
inline struct sigaction before_launch;
inline void on_fault(int, siginfo_t* about, void*) {
  if (block)
    for (const Shared& s : block->shared)
      if (s.has(about->si_addr)) fail("an access beside a shared variable");
  sigaction(SIGSEGV, &before_launch, nullptr);  // not ours: raised again for the previous handler
}

inline void begin() {
  kernel(argument);
  block->fibers[current].done = true;
  _longjmp(scheduler, 1);
}

inline void start(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack = {block->stacks.get() + size_t(current) * stack_nbytes, 0, size_t(stack_nbytes)};
  fiber.context.uc_link = nullptr;
  fiber.started = true;
  makecontext(&fiber.context, begin, 0);
  setcontext(&fiber.context);
}

// noinline: the fiber's state must not live in the scheduler's registers.
__attribute__((noinline)) inline void resume() {
  if (_setjmp(scheduler)) return;
  Fiber& fiber = block->fibers[current];
  if (!fiber.started) start(fiber);
  _longjmp(fiber.state, 1);
}

// Runs every thread once, or until one fails, except random warps that sleep while others get far ahead.
// Returns the number of unfinished threads.
inline int round() {
  const int warps = (n_threads + 31) / 32, first = int(random(unsigned(warps)));
  const bool backwards = random(2);
  if (state && !random(24)) block->asleep = random(1u << warps) & random(1u << warps);
  int left = 0;
  moved = false;
  block_index = block->index;
  for (int i = 0; i < warps; i++) {
    const int w = ((backwards ? warps - i : i) + first) % warps,
              end = w < warps - 1 ? 32 * w + 32 : n_threads;
    const bool skipped = block->asleep >> w & 1, last_first = random(2);
    moved = moved || skipped;
    for (int lane = 0; lane < end - 32 * w; lane++) {
      current = last_first ? end - 1 - lane : 32 * w + lane;
      if (block->fibers[current].done) continue;
      thread_index.x = unsigned(current);
      if (!skipped) resume();
      if (*problem) return left;
      moved = moved || block->fibers[current].done;
      left += !block->fibers[current].done;
    }
  }
  return left;
}

inline void admit(Block& b, Dim index) {
  b.index = index;
  b.number = ++started;
  b.running = true, b.waiting = false, b.asleep = 0;
  b.barrier = Barrier();
  for (auto& w : b.warps) w = Barrier();
  for (int i = 0; i < n_threads; i++) b.fibers[i].started = b.fibers[i].done = false;
}

// The next block to run, or null if none is left.
inline Block* choose(std::vector<Dim>& order, int resident) {
  Block* running[max_resident];
  int n = 0;
  for (int i = 0; i < (interleaved ? resident : 1); i++) {
    if (!blocks[i]) blocks[i].reset(new Block);
    if (!blocks[i]->running && !order.empty()) {
      admit(*blocks[i], order.back());
      order.pop_back();
    }
    if (blocks[i]->running) running[n++] = blocks[i].get();
  }
  if (!n) return nullptr;
  const int first = int(random(unsigned(n)));
  for (int i = 0; i < n; i++)
    if (!running[(first + i) % n]->waiting) return running[(first + i) % n];
  stalled++;
  for (int i = 0; i < n; i++) running[i]->waiting = false;
  return running[first];
}

// Runs all blocks, at most `most` at a time. Returns null, or an error message.
inline const char* run_blocks(uint64_t seed, int most) {
  std::vector<Dim> order;
  for (unsigned i = grid_size.x * grid_size.y; i-- > 0;) order.push_back({i % grid_size.x, i / grid_size.x});
  state = seed;
  for (size_t i = order.size(); seed && i > 1; i--) std::swap(order[i - 1], order[random(unsigned(i))]);
  const int resident = 1 + int(random(unsigned(most)));
  interleaved = false, stalled = 0, launches++, *problem = 0;
  for (auto& b : blocks)
    if (b) b->running = false;
  while ((block = choose(order, resident))) {
    if (stalled > unsigned(patience * most)) return "blocks wait for what none of them will publish";
    for (unsigned more = 1 + random(16); more-- > 0 && !block->waiting;) {
      const int left = round();
      if (*problem) return problem;
      if (!left) {
        block->running = false;
        for (const Shared& s : block->shared)
          if (s.data && !s.untouched()) return "a block has written in front of a shared variable";
        published();
        break;
      }
      if (!moved) return "some threads of a block wait at a barrier that others never reach";
      if (!interleaved && !more) more = 1;
    }
  }
  return nullptr;
}

inline const char* run(uint64_t seed, int most = 6) {
  struct sigaction mine = {};
  mine.sa_sigaction = on_fault;
  mine.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &mine, &before_launch);
  const char* found = run_blocks(seed, most);
  sigaction(SIGSEGV, &before_launch, nullptr);
  block = nullptr;
  return found;
}

}  // namespace executor
