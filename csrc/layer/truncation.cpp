#include "truncation.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "abi.h"
#include "engine/clock.h"
#include "messages.h"
#include "python.h"

namespace compcoll {
namespace layer {
namespace {

Own error_class("PMPI_Error_class"), iprobe("PMPI_Iprobe");

// Seconds for receives that were posted before to get what was sent before, and for a first message to come
// behind its notice.
constexpr double draining_seconds = 1, arrival_seconds = 10e-3;

// The last receives by their requests, few enough that noting one takes no time.
struct Place {
  std::atomic<Word> request{0}, comm{0};
  std::atomic<uint8_t*> begin{nullptr}, end{nullptr};
};
std::array<Place, 1024> places;

Place& place_of(Word request) { return places[(request ^ request >> 8) % places.size()]; }

// The communicator of a receive, 0 where it is not known.
Word comm_of(Word request) {
  const Place& place = place_of(request);
  return place.request.load(std::memory_order_relaxed) == request ? place.comm.load(std::memory_order_relaxed)
                                                                  : 0;
}

bool is_truncation(int error) {
  int its_class = 0;
  return !error_class.call(Word(int64_t(error)), &its_class) && its_class == library().err_truncate;
}

// Receives what is left of a compressed message whose first one MPI has truncated, as its status says, where it
// was one.
void drain(Comm& comm, const void* status) {
  const int source = source_of(status), tag = tag_of(status);
  if (!comm.notices) return;
  const double until = engine::now() + draining_seconds;
  while (comm.notices->awaits(source, tag) && engine::now() < until) the_engine().progress().step();
  if (comm.notices->known(source, tag).empty()) return;
  // Which of these MPI has truncated, if it was not another message, shows in what waits behind: all where
  // nothing does when what was announced has come, else those before it.
  int found = 0;
  alignas(8) char behind[most_nbytes_of_status];
  const double come = engine::now() + arrival_seconds;
  do iprobe.call(source, tag, comm.handle, &found, behind);
  while (!found && engine::now() < come);
  std::vector<Notices::Notice> all = comm.notices->known(source, tag);
  if (found) {
    auto waits = [&](const Notices::Notice& one) { return one.length == nbytes_of_message(behind); };
    const auto first = std::find_if(all.begin(), all.end(), waits);
    if (first == all.begin() || std::count_if(all.begin(), all.end(), waits) != 1)
      return comm.notices->may_be_truncated(source, tag);
    all.erase(first, all.end());
  }
  std::vector<Opening> truncated;
  for (const Notices::Notice& one : all) {
    comm.notices->drop(nullptr, source, tag, one.length, one.opening.serial);
    truncated.push_back(one.opening);
  }
  drop_truncated(comm, source, truncated);
}

}  // namespace

std::atomic<bool> any_receives{false};

std::shared_ptr<engine::Run> drop_chunks(Comm& comm, int source, const Opening& opening) {
  const Cut cut(opening.n, opening.itemsize, opening.step);
  if (!cut.count) return nullptr;
  const engine::Coding& coding = receiving(UINT64).coding;
  const engine::Tags tags = {int(opening.stream),
                             int(std::min<uint64_t>(cut.count, uint64_t(comm.tags.n_of_messages())))};
  return the_engine().begin(cut.schedule(source, false, true), coding, coding, {engine::Place(nullptr)},
                            make_wire(engine_library(), comm.notices->frames->handle()), tags);
}

void drop_truncated(Comm& comm, int source, const std::vector<Opening>& all) {
  for (const Opening& opening : all)
    if (std::shared_ptr<engine::Task> run = drop_chunks(comm, source, opening))
      the_engine().wait({run}, 1e18, [] { return false; });
}

void look_for_truncation(Comm& comm, int error, const void* status) {
  if (!error || !comm.compresses() || !is_truncation(error)) return;
  Unlocked unlocked;
  try {
    drain(comm, status);
  } catch (const std::bad_alloc&) { comm.fail_without_text(); }  // beside the error that there is
}

void remember_receive(Word request, const Comm& comm, const Range& range) {
  Place& place = place_of(request);
  place.request.store(request, std::memory_order_relaxed);
  place.comm.store(comm.handle, std::memory_order_relaxed);
  place.begin.store(range.begin, std::memory_order_relaxed);
  place.end.store(range.end, std::memory_order_relaxed);
  any_receives.store(true, std::memory_order_relaxed);
}

bool is_mpi_receiving(const Range& range) {
  return any_receives.load(std::memory_order_relaxed) &&
         std::any_of(places.begin(), places.end(), [&range](const Place& place) {
           const Range its = {place.begin.load(std::memory_order_relaxed),
                              place.end.load(std::memory_order_relaxed)};
           return its.meets(range) && place.request.load(std::memory_order_relaxed);
         });
}

void forget_receive(Word request) {
  place_of(request).request.compare_exchange_strong(request, 0, std::memory_order_relaxed);
}

Watched::Watched(const Given& given) : given_(given) {
  const Library& mpi = library();
  const char* requests = reinterpret_cast<const char*>(given.requests);
  for (int64_t i = 0; requests && i < given.n; i++) {
    const Word request = mpi.handle_at(requests + size_t(i) * mpi.handle_nbytes());
    if (Word comm = comm_of(request)) receives_.push_back({i, request, comm});
  }
}

Word Watched::statuses() {
  const bool many = given_.kind == Given::all || given_.kind == Given::some;
  if (given_.statuses == library().ignored_status || (many && !given_.statuses)) {
    own_.resize(library().status_nbytes * size_t(many ? given_.n : 1));
    filled_ = own_.data();
  } else {
    filled_ = reinterpret_cast<const char*>(given_.statuses);
  }
  return reinterpret_cast<Word>(filled_);
}

const char* Watched::status_of(int64_t index) const {
  if (given_.kind == Given::one) return filled_;
  if (given_.kind == Given::any) return *given_.indices == index ? filled_ : nullptr;
  if (given_.kind == Given::all) return filled_ + size_t(index) * library().status_nbytes;
  for (int k = 0; k < *given_.n_complete; k++)
    if (given_.indices[k] == index) return filled_ + size_t(k) * library().status_nbytes;
  return nullptr;
}

void Watched::look(int error) {
  const Library& mpi = library();
  const char* requests = reinterpret_cast<const char*>(given_.requests);
  for (const Receive& one : receives_)
    if (mpi.handle_at(requests + size_t(one.index) * mpi.handle_nbytes()) == mpi.request_null)
      forget_receive(one.request);
  if (!error) return;
  for (const Receive& one : receives_) {
    const char* status = status_of(one.index);
    if (!status) continue;
    int its = error;
    if (error == mpi.in_status) memcpy(&its, status + mpi.status_error_offset, sizeof its);
    if (Comm* comm = look_up(one.comm)) look_for_truncation(*comm, its, status);
  }
}

}  // namespace layer
}  // namespace compcoll
