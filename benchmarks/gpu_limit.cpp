// Measures the time that the driver and MPI need for an Alltoall of GPU memory between two ranks;
// benchmarks/gpu_limit.py compiles this file and calls it. The benchmark does only what the library has to
// do: upload the jobs, together or each before its launch; for each chunk launch, copy frame and result to
// the host and send them once they are there; and the reverse for arriving chunks.
#include <dlfcn.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

// Functions, handles and sizes of MPI, as found by mpi4py.
struct Mpi {
  void *isend, *irecv, *testsome;
  uint64_t comm, byte, null, status_nbytes;
};
struct Exchange {
  uint64_t block, chunk, frame;  // bytes: of a rank's block, of a chunk, and of a chunk's message
  uint64_t n, params[2], send, recv;
  uint32_t grid, threads, rank, device, kernels,
      uploads;  // flags: copies, launches, an upload for each chunk
  uint8_t header[80];
};

namespace {
using Address = uint64_t;

// struct Job and struct Result of csrc/cuda/job.cuh, one after the other.
struct Result {
  int64_t nbytes;
  double bound;
  uint32_t bad, checksum;
  uint64_t extent[3], params[2];
  uint32_t arrived, wanted, unused[2];
  uint8_t header[80];
};
struct JobEntry {
  Address src, dst;
  uint64_t n, nbytes, params[2];
  Address result, scratch;
  Result out;
};
static_assert(sizeof(JobEntry) == 224 && offsetof(JobEntry, out) == 64, "csrc/cuda/job.cuh");

constexpr uint64_t header_nbytes = 80, payload_at = 56, checksum_at = 72;  // compcoll/frame.py
constexpr int streams = 4, most = 64, not_ready = 600;  // not_ready: the driver's error code

struct Side {
  void *stream[streams], *event[most];
  Address frames, entries;
  uint8_t* pinned;
  JobEntry* entry;  // pinned, too
  Result* result;
};
Side down, up;
void *library, *encoder, *decoder, *own_stream, *own_event, *ready;
std::string problem;

void check(int code, const char* name) {
  if (code) throw std::runtime_error(std::string(name) + ": " + std::to_string(code));
}

template <class... Args>
void call(const char* name, void* function, Args... args) {
  check(function ? reinterpret_cast<int (*)(Args...)>(function)(args...) : -1, name);
}
#define CUDA(name, ...)                            \
  do {                                             \
    static void* function = dlsym(library, #name); \
    call(#name, function, __VA_ARGS__);            \
  } while (0)

bool ended(void* event) {
  static auto query = reinterpret_cast<int (*)(void*)>(dlsym(library, "cuEventQuery"));
  const int code = query(event);
  if (code != not_ready) check(code, "cuEventQuery");
  return !code;
}

void prepare(Side& side, size_t nbytes) {
  for (auto& stream : side.stream) CUDA(cuStreamCreate, &stream, 1u);
  for (auto& event : side.event) CUDA(cuEventCreate, &event, 2u);
  CUDA(cuMemAlloc_v2, &side.frames, nbytes);
  CUDA(cuMemAlloc_v2, &side.entries, sizeof(JobEntry) * most);
  CUDA(cuMemHostAlloc, reinterpret_cast<void**>(&side.pinned), nbytes, 1u);
  CUDA(cuMemHostAlloc, reinterpret_cast<void**>(&side.entry), sizeof(JobEntry) * most, 1u);
  CUDA(cuMemHostAlloc, reinterpret_cast<void**>(&side.result), sizeof(Result) * most, 1u);
}

template <class To, class From>
void copy(To to, From from, size_t nbytes, void* stream) {
  CUDA(cuMemcpyAsync, Address(to), Address(from), nbytes, stream);
}

void describe(const Exchange& x, Side& side, int k, Address src, Address dst, uint64_t nbytes) {
  const Address result = side.entries + k * sizeof(JobEntry) + offsetof(JobEntry, out);
  side.entry[k] = {src, dst, x.n, nbytes, {x.params[0], x.params[1]}, result, 0, {}};
  side.entry[k].out.wanted = 1;
}

// Launches a kernel on its uploaded entry, and copies the result.
void launch(const Exchange& x, void* kernel, Side& side, int k, void* stream) {
  Address job = side.entries + k * sizeof(JobEntry);
  void* arguments[] = {&job};
  CUDA(cuLaunchKernel, kernel, x.grid, 1u, 1u, x.threads, 1u, 1u, 0u, stream, &arguments[0], (void**)nullptr);
  copy(&side.result[k], job + offsetof(JobEntry, out), sizeof(Result), stream);
}

template <class Handle>
double exchange(const Mpi& mpi, const Exchange& x) {
  using Start = int (*)(const void*, int, Handle, int, int, Handle, Handle*);
  const auto isend = reinterpret_cast<Start>(mpi.isend), irecv = reinterpret_cast<Start>(mpi.irecv);
  const auto testsome = reinterpret_cast<int (*)(int, Handle*, int*, int*, void*)>(mpi.testsome);
  const Handle comm = Handle(mpi.comm), byte = Handle(mpi.byte);
  const int K = int(x.block / x.chunk), peer = 1 - int(x.rank), frame = int(x.frame);
  if (K > most) throw std::runtime_error("too many chunks");
  const uint64_t lead = x.kernels ? 128 - header_nbytes : 0, room = (x.frame + 255) / 128 * 128;
  const Address mine = x.send + peer * x.block, theirs = x.recv + peer * x.block;
  std::vector<Handle> requests(2 * K, Handle(mpi.null));
  std::vector<int> indices(2 * K);
  std::vector<char> statuses(2 * K * mpi.status_nbytes);
  auto host = [&](Side& side, int k) { return side.pinned + k * room + lead; };

  const auto begin = std::chrono::steady_clock::now();
  for (int k = 0; k < K; k++)
    check(irecv(host(up, k), frame, byte, peer, k, comm, &requests[k]), "MPI_Irecv");
  if (x.kernels) {
    for (int k = 0; k < K; k++) {
      describe(x, down, k, mine + k * x.chunk, down.frames + k * room + 128, x.chunk);
      memcpy(down.entry[k].out.header, x.header, header_nbytes);
    }
    if (!x.uploads) copy(down.entries, down.entry, K * sizeof(JobEntry), down.stream[0]);
    CUDA(cuEventRecord, ready, down.stream[0]);
    for (int s = 1; s < streams; s++) CUDA(cuStreamWaitEvent, down.stream[s], ready, 0u);
  }
  for (int k = 0; k < K && x.device; k++) {
    void* stream = down.stream[k % streams];
    if (x.uploads) copy(down.entries + k * sizeof(JobEntry), &down.entry[k], sizeof(JobEntry), stream);
    if (x.kernels) launch(x, encoder, down, k, stream);
    copy(host(down, k), x.kernels ? down.frames + k * room + lead : mine + k * x.chunk, x.frame, stream);
    CUDA(cuEventRecord, down.event[k], stream);
  }
  if (x.device) copy(x.recv + x.rank * x.block, x.send + x.rank * x.block, x.block, own_stream);
  if (x.device) CUDA(cuEventRecord, own_event, own_stream);
  for (int sent = 0, done = 0, some = 0; done < 2 * K;) {
    for (; sent < K && (!x.device || ended(down.event[sent])); sent++) {
      const Result& result = down.result[sent];
      if (x.kernels && (result.bad || result.nbytes + header_nbytes != x.frame))
        throw std::runtime_error("a chunk was not encoded");
      check(isend(host(down, sent), frame, byte, peer, sent, comm, &requests[K + sent]), "MPI_Isend");
    }
    check(testsome(2 * K, requests.data(), &some, indices.data(), statuses.data()), "MPI_Testsome");
    for (int i = 0; i < some; i++, done++) {
      const int k = indices[i];
      if (k >= K || !x.device) continue;
      void* stream = up.stream[k % streams];
      copy(x.kernels ? up.frames + k * room + lead : theirs + k * x.chunk, host(up, k), x.frame, stream);
      if (x.kernels) {
        uint64_t nbytes;
        memcpy(&nbytes, host(up, k) + payload_at, sizeof nbytes);
        describe(x, up, k, up.frames + k * room + 128, theirs + k * x.chunk, nbytes);
        copy(up.entries + k * sizeof(JobEntry), &up.entry[k], sizeof(JobEntry), stream);
        launch(x, decoder, up, k, stream);
      }
      CUDA(cuEventRecord, up.event[k], stream);
    }
  }
  for (int k = 0; k < K && x.device; k++) {
    while (!ended(up.event[k])) continue;
    if (x.kernels && (up.result[k].bad || memcmp(&up.result[k].checksum, host(up, k) + checksum_at, 4)))
      throw std::runtime_error("a chunk arrived damaged");
  }
  while (x.device && !ended(own_event)) continue;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

extern "C" const char* limit_problem() { return problem.c_str(); }
// Loads a module with two kernels for the GPU whose context is current; -1 on failure.
extern "C" double limit_open(const void* image, const char* encode, const char* decode, uint64_t nbytes) try {
  if (!(library = dlopen("libcuda.so.1", RTLD_NOW))) throw std::runtime_error(dlerror());
  void* module;
  CUDA(cuModuleLoadData, &module, image);
  CUDA(cuModuleGetFunction, &encoder, module, encode);
  CUDA(cuModuleGetFunction, &decoder, module, decode);
  for (Side* side : {&down, &up}) prepare(*side, nbytes);
  CUDA(cuStreamCreate, &own_stream, 1u);
  for (void** event : {&own_event, &ready}) CUDA(cuEventCreate, event, 2u);
  return 0;
} catch (const std::exception& error) { return problem = error.what(), -1; }

// Seconds of an Alltoall, or -1.
extern "C" double limit_exchange(const Mpi& mpi, const Exchange& x, int handle_nbytes) try {
  return handle_nbytes == 4 ? exchange<uint32_t>(mpi, x) : exchange<uint64_t>(mpi, x);
} catch (const std::exception& error) { return problem = error.what(), -1; }
