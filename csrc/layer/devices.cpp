#include "devices.h"

#include <dlfcn.h>

#include <algorithm>

namespace compcoll {
namespace layer {
namespace {

// CUDA's driver: attributes of a pointer, and their values.
constexpr int memory_type = 2, is_managed = 8;
constexpr unsigned device_memory = 2;
int (*pointer_attribute)(void*, int, Word) = nullptr;

bool asks_driver(Word address) {
  unsigned type = 0, managed = 0;
  if (pointer_attribute(&type, memory_type, address) || type != device_memory) return false;
  return pointer_attribute(&managed, is_managed, address) || !managed;
}

// Has Python do something; the code that it gives.
template <class Job>
int ask(void (*Python::*function)(void*), Job* job) {
  const Python* here = python();
  if (!here) return library().err_buffer;
  Inside within;
  (here->*function)(job);
  return job->code;
}

Own topo_test("PMPI_Topo_test"), cartdim_get("PMPI_Cartdim_get"), comm_rank("PMPI_Comm_rank"),
    graph_neighbors_count("PMPI_Graph_neighbors_count"),
    dist_graph_neighbors_count("PMPI_Dist_graph_neighbors_count");

// Ranks beside this one that it sends blocks to, or receives them from.
int neighbours_of(Word comm, SideName side) {
  int kind = 0, n = 0, rank = 0, into = 0, out = 0, weighted = 0;
  topo_test.call(comm, &kind);
  if (kind == library().cart) return cartdim_get.call(comm, &n) ? 0 : 2 * n;
  if (kind == library().graph) {
    comm_rank.call(comm, &rank);
    return graph_neighbors_count.call(comm, rank, &n) ? 0 : n;
  }
  dist_graph_neighbors_count.call(comm, &into, &out, &weighted);
  return side == send_side ? out : into;
}

}  // namespace

std::atomic<bool (*)(Word)> on_device{nullptr};

bool look_for_devices(bool (*instead)(Word)) {
  if (!instead && !pointer_attribute) {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    void* found = driver ? dlsym(driver, "cuPointerGetAttribute") : nullptr;
    pointer_attribute = reinterpret_cast<int (*)(void*, int, Word)>(found);
    if (!found) {
      on_device = nullptr;
      return false;
    }
  }
  on_device = instead ? instead : &asks_driver;
  look_at_all();
  return true;
}

void find_devices(Call* call) {
  bool (*ask)(Word) = on_device.load(std::memory_order_relaxed);
  if (!ask) return;
  const Operation& op = call->op();
  auto look = [&](int at) {
    const Word address = at < 0 ? 0 : call->words[at];
    return address && address != library().in_place && ask(address);
  };
  call->devices[send_side] = look(op.send.buf), call->devices[recv_side] = look(op.recv.buf);
  if (!call->devices[send_side] && !call->devices[recv_side]) return;
  const Arguments arguments(*call);
  for (SideName side : {send_side, recv_side})
    call->devices[side] = call->devices[side] && arguments.sound && arguments.sides[side].given;
}

int copy_devices(DeviceCopy* copy) { return ask(&Python::copy, copy); }

int begin_on_devices(DeviceJob* job) { return ask(&Python::begin_device, job); }

int wait_for_devices(const Call& call) {
  DeviceCopy job;
  for (int at : {call.op().send.buf, call.op().recv.buf})
    if (at >= 0 && call.devices[at == call.op().recv.buf]) job.ranges.push_back({call.words[at], nullptr, 0});
  return copy_devices(&job);
}

Staged::Staged(const Call& call, const Arguments& arguments, const std::vector<uint8_t>& out,
               const std::vector<uint8_t>& into)
    : words_(call.words, call.words + call.n_words) {
  const Operation& op = call.op();
  std::vector<Block> blocks[2];
  if (op.reduction >= 0) {
    arguments.blocks(&blocks[send_side], &blocks[recv_side]);
  } else {
    for (SideName name : {send_side, recv_side}) {
      const Side& side = arguments.sides[name];
      const int n = !side.many ? 1 : op.neighbours ? neighbours_of(call.comm.handle, name) : call.comm.size;
      for (int i = 0; side.given && i < n; i++) blocks[name].push_back(arguments.block(name, i));
    }
  }
  const std::vector<uint8_t>* gone[] = {&out, &into};
  struct Span {
    int64_t first, end;
    bool taken, given;
  };
  std::vector<Span> spans[2];
  for (int list : {send_side, recv_side}) {
    for (size_t i = 0; i < blocks[list].size(); i++) {
      const Block& block = blocks[list][i];
      const Room room = room_of(block);
      if (!room.any || !call.devices[block.side] || (i < gone[list]->size() && (*gone[list])[i])) continue;
      // Of what lies in between others' values are given back as they were.
      const int64_t lower =
          block.displ + std::min<int64_t>(0, (block.entries - 1) * block.type->extent) + block.type->lower;
      const int64_t stretch = std::abs(block.type->extent) * (block.entries - 1) + block.type->length;
      const bool in_place = op.send.buf >= 0 && call.words[op.send.buf] == library().in_place;
      const bool sends = list == send_side || op.one_buffer() || in_place;
      spans[block.side].push_back(
          {lower, lower + stretch, sends || room.layout != nullptr, list == recv_side});
    }
  }
  for (SideName side : {send_side, recv_side}) {
    if (spans[side].empty()) continue;
    const int at = side == send_side ? op.send.buf : op.recv.buf;
    int64_t first = spans[side][0].first, end = spans[side][0].end;
    for (const Span& span : spans[side]) first = std::min(first, span.first), end = std::max(end, span.end);
    nbytes_[side] = uint64_t(end - first);
    memory_[side] = the_engine().pool().get(nbytes_[side]);
    words_[size_t(at)] = reinterpret_cast<Word>(memory_[side]) - Word(first);
    std::sort(spans[side].begin(), spans[side].end(),
              [](const Span& a, const Span& b) { return a.first < b.first; });
    auto add = [&](DeviceCopy* copy, bool Span::* wanted) {
      const Span* last = nullptr;
      for (const Span& span : spans[side]) {
        if (!(span.*wanted)) continue;
        const Word device = call.words[at] + Word(span.first), stop = device + Word(span.end - span.first);
        if (last && device <= copy->ranges.back().on_device + copy->ranges.back().nbytes) {
          uint64_t& nbytes = copy->ranges.back().nbytes;
          nbytes = std::max(nbytes, stop - copy->ranges.back().on_device);
        } else {
          copy->ranges.push_back({device, memory_[side] + (span.first - first), stop - device});
        }
        last = &span;
      }
    };
    add(&taken_, &Span::taken);
    add(&given_, &Span::given);
  }
  given_.to_host = false;
}

Staged::~Staged() {
  for (int side = 0; side < 2; side++)
    if (memory_[side]) the_engine().pool().put(memory_[side], nbytes_[side]);
}

int Staged::take() { return taken_.ranges.empty() ? 0 : copy_devices(&taken_); }

int Staged::give_back() { return given_.ranges.empty() ? 0 : copy_devices(&given_); }

}  // namespace layer
}  // namespace compcoll
