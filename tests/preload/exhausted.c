// Simulates running out of memory or threads in the calling process: when preloaded, it overrides operator
// new and pthread_create.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { nothing, memory, large, threads };

static atomic_int what, calls, first, stays;

// Makes call `number` of a kind fail, and if `all` is not 0 each later one, or calls for `number` bytes and
// more. Returns the number of calls so far, or of failed ones.
int exhaust(int kind, int number, int all) {
  what = nothing;
  const int before = calls;
  calls = 0, first = number, stays = all;
  what = kind;
  return before;
}

static int fails(int kind) {
  if (what != kind) return 0;
  const int number = ++calls;
  return stays ? number >= first : number == first;
}

static int has(size_t nbytes) {
  const int is_large = what == large && nbytes >= (size_t)first;
  calls += is_large;
  return !is_large && !fails(memory);
}

void _ZSt17__throw_bad_allocv(void);  // from libstdc++

// operator new
void* _Znwm(size_t nbytes) {
  void* found = has(nbytes) ? malloc(nbytes ? nbytes : 1) : NULL;
  if (!found) _ZSt17__throw_bad_allocv();
  return found;
}

// operator new for aligned memory
void* _ZnwmSt11align_val_t(size_t nbytes, size_t alignment) {
  void* found =
      has(nbytes) ? aligned_alloc(alignment, (nbytes + alignment - 1) / alignment * alignment) : NULL;
  if (!found) _ZSt17__throw_bad_allocv();
  return found;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*main)(void*), void* given) {
  typedef int Create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static Create* next;
  if (!next) next = (Create*)dlsym(RTLD_NEXT, "pthread_create");
  return fails(threads) ? EAGAIN : next(thread, attributes, main, given);
}
