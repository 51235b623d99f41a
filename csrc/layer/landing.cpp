#include "landing.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace compcoll {
namespace layer {
namespace {

// Bytes of a message that are not written yet, and the places where they belong.
struct Withheld {
  std::vector<std::pair<uint8_t*, uint64_t>> places;
  std::vector<uint8_t> bytes;

  void add(uint8_t* place, const uint8_t* from, uint64_t nbytes) {
    if (!places.empty() && places.back().first + places.back().second == place)
      places.back().second += nbytes;
    else places.emplace_back(place, nbytes);
    bytes.insert(bytes.end(), from, from + nbytes);
  }
  // Writes the bytes whose places are not in `except`.
  void write(const Range& except) const {
    const uint8_t* from = bytes.data();
    for (auto [place, nbytes] : places) {
      uint8_t *end = place + nbytes, *before = std::clamp(except.begin, place, end),
              *behind = std::clamp(except.end, before, end);
      memcpy(place, from, size_t(before - place));
      memcpy(behind, from + (behind - place), size_t(end - behind));
      from += nbytes;
    }
  }
};

// A receive posted on the program's buffer, whose message the layer has not looked at yet.
struct InPlace {
  Range bytes, first;  // `first` may take a first message
  uint64_t number;
  std::vector<Withheld> withheld;
};

struct Landings {
  std::mutex mutex;
  std::map<uint8_t*, InPlace> in_place;  // by their first bytes; no two overlap
  std::vector<Range> written;  // memory that the layer is writing to
  uint64_t n = 0;
};

Landings& landings() {
  static auto one = new Landings;
  return *one;
}

// Calls `visit` for each receive in place that overlaps these bytes. Requires the lock.
template <class Visit>
void each_in_place(const Range& bytes, Visit&& visit) {
  auto& all = landings().in_place;
  auto one = all.upper_bound(bytes.begin);
  if (one != all.begin()) --one;
  for (; one != all.end() && one->first < bytes.end; ++one)
    if (one->second.bytes.meets(bytes)) visit(one->second);
}

// The last receives that MPI carries out by itself, by their requests. Remembering one takes no time.
struct ReceiveByMpi {
  std::atomic<uint8_t*> begin{nullptr}, end{nullptr};
  bool meets(const Range& bytes) const {
    return Range{begin.load(std::memory_order_relaxed), end.load(std::memory_order_relaxed)}.meets(bytes);
  }
};
std::array<ReceiveByMpi, 1024> receives_by_mpi;

bool meets_first(const Range& bytes) {
  bool found = false;
  each_in_place(bytes, [&](const InPlace& one) { found = found || one.first.meets(bytes); });
  return found;
}

}  // namespace

std::atomic<int> n_in_place{0};

bool is_guarded(const Range& bytes) {
  std::lock_guard<std::mutex> lock(landings().mutex);
  return meets_first(bytes);
}

void remember_receive_by_mpi(Word request, const Range& bytes) {
  ReceiveByMpi& one = receives_by_mpi[(request ^ request >> 8) % receives_by_mpi.size()];
  one.begin.store(bytes.begin, std::memory_order_relaxed);
  one.end.store(bytes.end, std::memory_order_relaxed);
}

// -- receives in place

bool Landing::receive_in_place(const Range& bytes, uint64_t first_nbytes) {
  if (bytes.begin == bytes.end) return true;  // no other receive has this memory
  Landings& all = landings();
  std::lock_guard<std::mutex> lock(all.mutex);
  bool free = std::none_of(all.written.begin(), all.written.end(),
                           [&](const Range& one) { return one.meets(bytes); });
  each_in_place(bytes, [&free](const InPlace&) { free = false; });
  for (const ReceiveByMpi& one : receives_by_mpi) free = free && !one.meets(bytes);
  if (!free) return false;
  const auto nbytes = std::min(first_nbytes, uint64_t(bytes.end - bytes.begin));
  all.in_place[bytes.begin] = {bytes, {bytes.begin, bytes.begin + nbytes}, ++all.n, {}};
  in_place_ = bytes.begin;
  n_in_place++;
  return true;
}

void Landing::end_in_place(uint64_t nbytes) {
  Landings& all = landings();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (!in_place_) return;
  auto found = all.in_place.find(in_place_);
  // The lock is held, so no later message can be written there meanwhile.
  for (const Withheld& one : found->second.withheld) one.write({in_place_, in_place_ + nbytes});
  all.in_place.erase(found);
  in_place_ = nullptr;
  n_in_place--;
}

// -- the layer's writes

bool Landing::begin_write(const Range& bytes) {
  end_write();
  if (bytes.begin == bytes.end) return true;
  Landings& all = landings();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.in_place.empty() && meets_first(bytes)) return false;
  all.written.push_back(bytes);
  written_ = bytes;
  return true;
}

void Landing::end_write() {
  if (written_.begin == written_.end) return;
  Landings& all = landings();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = std::find_if(all.written.begin(), all.written.end(), [this](const Range& one) {
    return one.begin == written_.begin && one.end == written_.end;
  });
  *found = all.written.back();
  all.written.pop_back();
  written_ = {};
}

void Landing::write_around(const Range& bytes, const std::function<void(const Write&)>& visit_all) {
  std::vector<InPlace> guarded;  // in the order of addresses, with the bytes to write there later
  Landings& all = landings();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    each_in_place(bytes, [&](const InPlace& one) {
      guarded.push_back({one.bytes, one.first, one.number, std::vector<Withheld>(1)});
    });
    all.written.push_back(bytes);
    written_ = bytes;
  }
  visit_all([&](uint8_t* place, const uint8_t* from, uint64_t nbytes) {
    uint8_t* const end = place + nbytes;
    for (InPlace& one : guarded) {
      uint8_t *before = std::clamp(one.first.begin, place, end),
              *behind = std::clamp(one.first.end, before, end);
      memcpy(place, from, size_t(before - place));
      if (before != behind) one.withheld[0].add(before, from + (before - place), uint64_t(behind - before));
      from += behind - place;
      place = behind;
    }
    memcpy(place, from, size_t(end - place));
  });
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    for (InPlace& one : guarded) {
      auto found = all.in_place.find(one.bytes.begin);
      if (found != all.in_place.end() && found->second.number == one.number)
        found->second.withheld.push_back(std::move(one.withheld[0]));
      else one.withheld[0].write({});  // it was looked at meanwhile
    }
  }
  end_write();
}

Landing::~Landing() {
  end_in_place(0);
  end_write();
}

}  // namespace layer
}  // namespace compcoll
