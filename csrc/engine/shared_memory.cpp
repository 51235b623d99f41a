#include "shared_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <random>

namespace compcoll {
namespace engine {
namespace {

constexpr uint64_t keep_nbytes = 256 << 20;
constexpr uint64_t page_nbytes = 4096, huge_nbytes = 2 << 20;
constexpr uint64_t n_cells = 1024;

uint8_t* map(int fd, uint64_t nbytes) {
  void* memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, nbytes, MADV_HUGEPAGE);  // where the system has them for shared memory
  return static_cast<uint8_t*>(memory);
}

}  // namespace

// A bounded queue of many producers and one consumer (Vyukov, "Bounded MPMC queue"): a cell's turn says who
// is next at it.
struct Segment::Mailbox {
  struct alignas(64) Cell {
    std::atomic<uint64_t> turn;
    Notice notice;
  };
  std::atomic<uint64_t> token;
  alignas(64) std::atomic<uint64_t> tail;
  alignas(64) std::atomic<uint64_t> head;
  Cell cells[n_cells];
};

Segment::Mailbox& Segment::mailbox() const { return *reinterpret_cast<Mailbox*>(memory_); }

std::shared_ptr<Segment> Segment::create(uint64_t nbytes) {
  SegmentAddress address;
  address.pid = getpid();
  address.nbytes = nbytes;
  address.fd = int(syscall(SYS_memfd_create, "compcoll", MFD_CLOEXEC));  // in all C libraries
  if (address.fd < 0) return nullptr;
  uint8_t* memory = ftruncate(address.fd, off_t(nbytes)) ? nullptr : map(address.fd, nbytes);
  if (!memory) {
    close(address.fd);
    return nullptr;
  }
  std::random_device random;
  while (!address.token) address.token = uint64_t(random()) << 32 | random();
  std::shared_ptr<Segment> made(new Segment(address, memory));
  Mailbox* mailbox = new (memory) Mailbox;
  for (uint64_t i = 0; i < n_cells; i++) mailbox->cells[i].turn = i;
  mailbox->head = mailbox->tail = 0;
  mailbox->token = address.token;
  made->used_ = (sizeof(Mailbox) + huge_nbytes - 1) / huge_nbytes * huge_nbytes;
  return made;
}

std::shared_ptr<Segment> Segment::open(const SegmentAddress& address) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/%d", static_cast<long long>(address.pid), address.fd);
  const int fd = ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  // Numbers of processes may mean others here.
  const bool whole = uint64_t(lseek(fd, 0, SEEK_END)) == address.nbytes;
  uint8_t* memory = whole ? map(fd, address.nbytes) : nullptr;
  close(fd);
  if (!memory) return nullptr;
  SegmentAddress mapped = address;
  mapped.fd = -1;
  std::shared_ptr<Segment> opened(new Segment(mapped, memory));
  return opened->mailbox().token == address.token ? opened : nullptr;
}

Segment::~Segment() {
  munmap(memory_, address_.nbytes);
  if (address_.fd >= 0) close(address_.fd);
}

bool Segment::post(const Notice& notice) {
  Mailbox& box = mailbox();
  for (uint64_t at = box.tail.load(std::memory_order_relaxed);;) {
    Mailbox::Cell& cell = box.cells[at % n_cells];
    const uint64_t turn = cell.turn.load(std::memory_order_acquire);
    if (turn < at) return false;
    if (turn > at) {
      at = box.tail.load(std::memory_order_relaxed);
    } else if (box.tail.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
      cell.notice = notice;
      cell.turn.store(at + 1, std::memory_order_release);
      return true;
    }
  }
}

bool Segment::has_notice() const {
  const Mailbox& box = mailbox();
  const uint64_t at = box.head.load(std::memory_order_relaxed);
  return box.cells[at % n_cells].turn.load(std::memory_order_acquire) == at + 1;
}

bool Segment::fetch(Notice* notice) {
  if (!has_notice()) return false;
  Mailbox& box = mailbox();
  const uint64_t at = box.head.load(std::memory_order_relaxed);
  Mailbox::Cell& cell = box.cells[at % n_cells];
  *notice = cell.notice;
  cell.turn.store(at + n_cells, std::memory_order_release);
  box.head.store(at + 1, std::memory_order_relaxed);
  return true;
}

uint8_t* Segment::allocate(uint64_t nbytes) {
  nbytes = (nbytes + page_nbytes - 1) / page_nbytes * page_nbytes;
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto found = released_.find(nbytes); found != released_.end() && !found->second.empty()) {
    uint8_t* memory = found->second.back();
    found->second.pop_back();
    return memory;
  }
  if (nbytes > address_.nbytes - used_) throw std::bad_alloc();
  uint8_t* memory = memory_ + used_;
  used_ += nbytes;
  return memory;
}

void Segment::release(uint8_t* memory, uint64_t nbytes) {
  nbytes = (nbytes + page_nbytes - 1) / page_nbytes * page_nbytes;
  madvise(memory, nbytes, MADV_REMOVE);
  std::lock_guard<std::mutex> lock(mutex_);
  released_[nbytes].push_back(memory);
}

SharedMemory::SharedMemory(std::shared_ptr<Segment> own)
    : own_(std::move(own)), pool_(keep_nbytes, own_.get()) {
  attach(own_);
}

void SharedMemory::attach(const std::shared_ptr<Segment>& segment) {
  std::lock_guard<std::mutex> lock(mutex_);
  segments_[segment->address().token] = segment;
}

bool SharedMemory::attached(uint64_t token) {
  std::lock_guard<std::mutex> lock(mutex_);
  return segments_.count(token);
}

uint8_t* SharedMemory::get(uint64_t nbytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto back = [this](const Block& block) { return put_back(block); };
    read_.erase(std::remove_if(read_.begin(), read_.end(), back), read_.end());
  }
  uint8_t* block = pool_.get(nbytes + sizeof(Front)) + sizeof(Front);
  Front* made = new (block - sizeof(Front)) Front;
  made->readers = made->untaken = 0;
  return block;
}

void SharedMemory::put(uint8_t* memory, uint64_t nbytes) {
  const Block block = {memory, nbytes};
  std::lock_guard<std::mutex> lock(mutex_);
  if (!put_back(block)) read_.push_back(block);
}

// Gives a block back to the pool, unless somebody reads it.
bool SharedMemory::put_back(const Block& block) {
  if (front(block.memory).readers.load(std::memory_order_acquire)) return false;
  pool_.put(block.memory - sizeof(Front), block.nbytes + sizeof(Front));
  return true;
}

const Segment* SharedMemory::segment_of(const uint8_t* data) const {
  if (own_->contains(data)) return own_.get();
  for (const auto& [token, segment] : segments_)
    if (segment->contains(data)) return segment.get();
  return nullptr;
}

bool SharedMemory::post(uint64_t token, uint64_t key, int source, int tag, const uint8_t* frame,
                        uint64_t nbytes) {
  Notice notice = {key, source, tag, 0, 0, nbytes, false};
  std::lock_guard<std::mutex> lock(mutex_);
  if (nbytes) {
    const Segment* segment = segment_of(frame);
    if (!segment) return false;
    notice.owner = segment->address().token;
    notice.offset = uint64_t(frame - segment->at(0));
    front(frame).readers.fetch_add(1, std::memory_order_relaxed);
    notice.own = segment == own_.get();
    if (notice.own) front(frame).untaken.fetch_add(1, std::memory_order_relaxed);
  }
  auto& delayed = delayed_[token];
  if (!delayed.empty() || !segments_.at(token)->post(notice)) {
    delayed.push_back(notice);
    n_delayed_++;
  }
  return true;
}

void SharedMemory::progress() {
  if (posted() && !own_->has_notice()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [token, delayed] : delayed_)
    while (!delayed.empty() && segments_.at(token)->post(delayed.front())) {
      delayed.pop_front();
      n_delayed_--;
    }
  for (Notice notice; own_->fetch(&notice);) {
    arrived_[sender(notice.key, notice.source, notice.tag)].push_back(notice);
    arrivals_.fetch_add(1, std::memory_order_release);
  }
}

bool SharedMemory::take(uint64_t key, int source, int tag, const uint8_t** frame, uint64_t* nbytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = arrived_.find(sender(key, source, tag));
  if (found == arrived_.end()) return false;
  const Notice& notice = found->second.front();
  *nbytes = notice.nbytes;
  *frame = notice.nbytes ? segments_.at(notice.owner)->at(notice.offset) : nullptr;
  if (notice.own) front(*frame).untaken.fetch_sub(1, std::memory_order_acq_rel);
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  return true;
}

}  // namespace engine
}  // namespace compcoll
