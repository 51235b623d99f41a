#include "segment.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <random>

#include "cuda.h"

namespace compcoll {
namespace engine {
namespace {

constexpr uint64_t page_nbytes = 4096;
constexpr uint64_t n_cells = 1024;

std::atomic<uint64_t> mapped_nbytes{0};  // all pieces

uint64_t limit_of(decltype(RLIMIT_AS) resource) {
  struct rlimit limit;
  return getrlimit(resource, &limit) || limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

// Maps a part of a segment, excluded from core files: frames say nothing about a crash.
uint8_t* map(int fd, uint64_t offset, uint64_t nbytes) {
  void* memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, off_t(offset));
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, nbytes, MADV_DONTDUMP);
  return static_cast<uint8_t*>(memory);
}

}  // namespace

// A bounded queue with many producers and one consumer (Vyukov, "Bounded MPMC queue"): a cell's turn says
// which of them may use it next.
struct Segment::Mailbox {
  struct alignas(64) Cell {
    std::atomic<uint64_t> turn;
    MailboxEntry notice;
  };
  std::atomic<uint64_t> token;  // read by others to tell a segment from another file
  std::atomic<uint64_t> pinned;  // registered by the owner; keeps its pages
  alignas(64) std::atomic<uint64_t> tail;
  alignas(64) std::atomic<uint64_t> head;
  Cell cells[n_cells];
};

Segment::Mailbox& Segment::mailbox() const { return *reinterpret_cast<Mailbox*>(mailbox_); }

std::shared_ptr<Segment> Segment::create(uint64_t memory_nbytes) {
  SegmentAddress address;
  address.pid = getpid();
  address.fd = int(syscall(SYS_memfd_create, "compcoll", MFD_CLOEXEC));  // in all C libraries
  if (address.fd < 0) return nullptr;
  const bool has_room = limit_of(RLIMIT_FSIZE) >= sizeof(Mailbox);  // beyond it, a signal ends the process
  uint8_t* memory =
      has_room && !ftruncate(address.fd, sizeof(Mailbox)) ? map(address.fd, 0, sizeof(Mailbox)) : nullptr;
  if (!memory) {
    close(address.fd);
    return nullptr;
  }
  std::random_device random;
  while (!address.token) address.token = uint64_t(random()) << 32 | random();
  Mailbox* mailbox = new (memory) Mailbox;
  for (uint64_t i = 0; i < n_cells; i++) mailbox->cells[i].turn = i;
  mailbox->head = mailbox->tail = mailbox->pinned = 0;
  mailbox->token = address.token;
  const uint64_t most = memory_nbytes / memory_part / piece_nbytes;
  return std::shared_ptr<Segment>(new Segment(address, address.fd, memory, most));
}

std::shared_ptr<Segment> Segment::open(const SegmentAddress& address) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/fd/%d", static_cast<long long>(address.pid), address.fd);
  const int fd = ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  // The process number may mean another process in this namespace.
  uint64_t token = 0;
  const bool is_it = pread(fd, &token, sizeof token, 0) == sizeof token && token == address.token;
  uint8_t* memory = is_it ? map(fd, 0, sizeof(Mailbox)) : nullptr;
  if (memory) return std::shared_ptr<Segment>(new Segment(address, fd, memory, 0));
  close(fd);
  return nullptr;
}

Segment::~Segment() {
  munmap(mailbox_, sizeof(Mailbox));
  for (const auto& [memory, offset] : offsets_)  // GPUs may access a registered piece until the process ends
    if (offset / piece_nbytes != pinned_) munmap(const_cast<uint8_t*>(memory), piece_nbytes);
  mapped_nbytes -= offsets_.size() * piece_nbytes;
  close(fd_);
}

// Maps a piece; null if that fails, or if mapped pieces would take too much of the address space.
uint8_t* Segment::map_piece(uint64_t number) {
  if (number < pieces_.size() && pieces_[number]) return pieces_[number];
  uint8_t* memory = nullptr;
  if (mapped_nbytes.fetch_add(piece_nbytes) + piece_nbytes <= limit_of(RLIMIT_AS) / addresses_part)
    memory = map(fd_, number * piece_nbytes, piece_nbytes);
  if (!memory) {
    mapped_nbytes -= piece_nbytes;
    return nullptr;
  }
  madvise(memory, piece_nbytes, MADV_HUGEPAGE);  // if the system supports them for shared memory
  if (pieces_.size() <= number) pieces_.resize(number + 1);
  offsets_[memory] = number * piece_nbytes;
  return pieces_[number] = memory;
}

uint8_t* Segment::at(uint64_t offset) {
  std::lock_guard<std::mutex> lock(mutex_);
  uint8_t* piece = map_piece(offset / piece_nbytes);
  return piece ? piece + offset % piece_nbytes : nullptr;
}

uint64_t Segment::offset_of(const uint8_t* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto behind = offsets_.upper_bound(data);
  if (behind == offsets_.begin()) return 0;
  const auto& [memory, offset] = *std::prev(behind);
  return data < memory + piece_nbytes ? offset + uint64_t(data - memory) : 0;
}

bool Segment::read(uint64_t offset, uint64_t nbytes, uint8_t* into) const {
  while (nbytes) {
    const ssize_t n = pread(fd_, into, nbytes, off_t(offset));
    if (n <= 0) return false;
    offset += uint64_t(n), into += n, nbytes -= uint64_t(n);
  }
  return true;
}

bool Segment::post(const MailboxEntry& notice) {
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

bool Segment::fetch(MailboxEntry* notice) {
  if (!has_notice()) return false;
  Mailbox& box = mailbox();
  const uint64_t at = box.head.load(std::memory_order_relaxed);
  Mailbox::Cell& cell = box.cells[at % n_cells];
  *notice = cell.notice;
  cell.turn.store(at + n_cells, std::memory_order_release);
  box.head.store(at + 1, std::memory_order_relaxed);
  return true;
}

uint8_t* Segment::take(uint64_t nbytes, bool pinned) {
  nbytes = (nbytes + page_nbytes - 1) / page_nbytes * page_nbytes;
  if (nbytes > piece_nbytes) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  auto has_room = [&](const auto& gap) {
    return gap.second >= nbytes && (gap.first / piece_nbytes == pinned_) == pinned;
  };
  auto found = std::find_if(free_.begin(), free_.end(), has_room);
  if (found == free_.end()) {
    if (pinned || !grow()) return nullptr;
    found = std::prev(free_.end());
  }
  const auto [offset, room] = *found;
  free_.erase(found);
  if (room > nbytes) free_[offset + nbytes] = room - nbytes;
  return pieces_[offset / piece_nbytes] + offset % piece_nbytes;
}

// Adds a piece; false if a limit does not allow it.
bool Segment::grow() {
  const uint64_t number = std::max<uint64_t>(1, pieces_.size()), end = (number + 1) * piece_nbytes;
  if (number > most_ || end > limit_of(RLIMIT_FSIZE) || ftruncate(fd_, off_t(end))) return false;
  if (!map_piece(number)) return false;
  free_[number * piece_nbytes] = piece_nbytes;
  return true;
}

bool Segment::pin() {
  std::call_once(tried_, [this] {
    uint64_t number = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!grow()) return;
      pinned_ = number = pieces_.size() - 1;
    }
    if (register_piece(number)) mailbox().pinned.store(number, std::memory_order_release);
  });
  return pinned_;
}

void Segment::pin(uint64_t offset) {
  const uint64_t number = mailbox().pinned.load(std::memory_order_acquire);
  if (!number || number != offset / piece_nbytes) return;
  std::call_once(tried_, [&] {
    pinned_ = number;
    register_piece(number);
  });
}

// Registers a mapped piece.
bool Segment::register_piece(uint64_t number) {
  if (pinned().add(at(number * piece_nbytes), piece_nbytes)) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  pinned_ = 0;
  return false;
}

void Segment::release(uint8_t* memory, uint64_t nbytes) {
  nbytes = (nbytes + page_nbytes - 1) / page_nbytes * page_nbytes;
  const uint64_t offset = offset_of(memory);
  // MADV_REMOVE would fail on locked memory.
  if (offset / piece_nbytes != pinned_)
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(offset), off_t(nbytes));
  std::lock_guard<std::mutex> lock(mutex_);
  auto gap = free_.emplace(offset, nbytes).first;
  auto join = [this](auto left, auto right) {
    if (left->first + left->second != right->first || right->first % piece_nbytes == 0) return;
    left->second += right->second;
    free_.erase(right);
  };
  if (std::next(gap) != free_.end()) join(gap, std::next(gap));
  if (gap != free_.begin()) join(std::prev(gap), gap);
}

}  // namespace engine
}  // namespace compcoll
