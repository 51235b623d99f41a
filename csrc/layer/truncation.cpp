#include "truncation.h"

#include <array>
#include <cstring>

#include "messages.h"
#include "python.h"

namespace compcoll {
namespace layer {
namespace {

Own error_class("PMPI_Error_class");

// The last receives by their requests, few enough that noting one takes no time.
struct Place { std::atomic<Word> request{0}, comm{0}; };
std::array<Place, 1024> places;

Place& place_of(Word request) { return places[(request ^ request >> 8) % places.size()]; }

// The communicator of a receive, 0 where it is not known.
Word comm_of(Word request) {
  const Place& place = place_of(request);
  return place.request.load(std::memory_order_relaxed) == request ? place.comm.load(std::memory_order_relaxed)
                                                                  : 0;
}

}  // namespace

std::atomic<bool> any_receives{false};

bool is_truncation(int error) {
  int its_class = 0;
  return !error_class.call(Word(int64_t(error)), &its_class) && its_class == library().err_truncate;
}

void remember_receive(Word request, const Comm& comm) {
  Place& place = place_of(request);
  place.request.store(request, std::memory_order_relaxed);
  place.comm.store(comm.handle, std::memory_order_relaxed);
  any_receives.store(true, std::memory_order_relaxed);
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
    Comm* comm = its && is_truncation(its) ? look_up(one.comm) : nullptr;
    if (!comm || !comm->compresses()) continue;
    Unlocked unlocked;
    drain(*comm, status);
  }
}

}  // namespace layer
}  // namespace compcoll
