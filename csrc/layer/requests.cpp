#include "requests.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "engine/clock.h"
#include "functions.h"

namespace compcoll {
namespace layer {
namespace {

Own grequest_start("PMPI_Grequest_start"), recv_init("PMPI_Recv_init"), isend("PMPI_Isend"),
    iprobe("PMPI_Iprobe"), mpi_recv("PMPI_Recv"), comm_dup("PMPI_Comm_dup"),
    comm_set_errhandler("PMPI_Comm_set_errhandler"), request_free("PMPI_Request_free");

// Requests of the layer's, by their handles: of calls under way, and of prepared ones.
struct Requests {
  std::mutex mutex;  // nothing is waited for with it, as MPI calls what takes it
  std::map<Word, std::shared_ptr<PendingOperation>> pending;
  std::map<Word, std::shared_ptr<Prepared>> prepared;
  std::unordered_map<Word, Record> records;  // of calls that are recorded, MPI's among them
  // Freed by MPI, whose callback can neither free communicators nor allocate memory.
  std::multimap<Word, std::shared_ptr<PendingOperation>> freed;
};

Requests& requests() {
  static auto one = new Requests;
  return *one;
}

}  // namespace

std::atomic<int> n_requests{0};

std::shared_ptr<Prepared> prepared_of(Word handle) {
  if (!any_requests()) return nullptr;
  std::lock_guard<std::mutex> lock(requests().mutex);
  auto found = requests().prepared.find(handle);
  return found == requests().prepared.end() ? nullptr : found->second;
}

bool has_record(Word handle) {
  if (!recorder.on() || !any_requests()) return false;
  std::lock_guard<std::mutex> lock(requests().mutex);
  return requests().records.count(handle) != 0;
}

// A call has ended, or its request is no more.
void close_record(Word handle, std::shared_ptr<PendingOperation> pending, int error) {
  Record record;
  {
    std::lock_guard<std::mutex> lock(requests().mutex);
    auto found = requests().records.find(handle);
    if (found == requests().records.end()) return;
    record = std::move(found->second);
    requests().records.erase(found);
    n_requests--;
  }
  record.end = engine::now();
  if (error) record.error = error;
  if (pending) record.outcome = pending->outcome();
  recorder.add(std::move(record));
}

namespace {

// -- generalized requests: what MPI asks always succeeds, and an error is the affair of waits

// `state` is where the request's handle stands.
int query(void* state, void* status) {
  if (auto pending = pending_of(*static_cast<Word*>(state))) pending->tell(status);
  return 0;
}

int freed(void* state) {
  auto handle = static_cast<Word*>(state);
  std::lock_guard<std::mutex> lock(requests().mutex);
  auto found = requests().pending.find(*handle);
  if (found != requests().pending.end()) {
    requests().freed.insert(requests().pending.extract(found));
    n_requests--;
  }
  delete handle;
  return 0;
}

int cancel(void* state, int is_complete) {
  auto pending = is_complete ? nullptr : pending_of(*static_cast<Word*>(state));
  if (pending) pending->cancel();
  return 0;
}

// -- stand-ins: receives of no bytes, for each of which one byte waits. Code that is not hooked gets an error
// where it starts one

Word mirror = 0;
const char byte = 0;

int make_stand_in(Word* handle) {
  const Library& mpi = library();
  if (!own_comm()) return mpi.err_other;
  Word made = 0, sent = 0;
  if (int error = isend.call(&byte, 1, mpi.byte, 0, 0, mirror, &sent)) return error;
  request_free.call(&sent);
  int error = recv_init.call(Word(0), Word(0), mpi.byte, 0, 0, mirror, &made);
  *handle = mpi.handle_of(made);
  return error;
}

// Takes a byte of a stand-in that is no more; false where there is none, as somebody has started one.
bool take_byte() {
  int found = 0;
  char received;
  const Library& mpi = library();
  iprobe.call(0, 0, mirror, &found, mpi.ignored_status);
  if (found) mpi_recv.call(&received, 1, mpi.byte, 0, 0, mirror, mpi.ignored_status);
  return found;
}

}  // namespace

Word own_comm() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  Word made = 0;
  if (mirror || comm_dup.call(library().comm_self, &made)) return mirror;
  comm_set_errhandler.call(library().handle_of(made), library().errors_return);
  return mirror = library().handle_of(made);
}

int start_request(const std::shared_ptr<PendingOperation>& pending, Word* request) {
  std::map<Word, std::shared_ptr<PendingOperation>> place{{0, pending}};
  std::multimap<Word, std::shared_ptr<PendingOperation>> old;
  auto handle = std::make_unique<Word>(0);
  if (int error =
          grequest_start.call(&query, &freed, &cancel, static_cast<void*>(handle.get()), handle.get()))
    return error;
  auto entry = place.extract(place.begin());
  *request = *handle = entry.key() = library().handle_of(*handle);
  handle.release();  // which `freed` deletes
  std::lock_guard<std::mutex> lock(requests().mutex);
  requests().pending.insert(std::move(entry));
  n_requests++;
  for (auto one = requests().freed.begin(); one != requests().freed.end();) {
    const auto next = std::next(one);
    if (one->second->ended()) old.insert(requests().freed.extract(one));
    one = next;
  }
  return 0;
}

void free_request(Word request) {
  Word place;
  library().put_handle(request, &place);
  request_free.call(&place);
}

std::shared_ptr<PendingOperation> pending_of(Word request) {
  if (!any_requests()) return nullptr;
  std::lock_guard<std::mutex> lock(requests().mutex);
  auto found = requests().pending.find(request);
  return found == requests().pending.end() ? nullptr : found->second;
}

void keep_record(Word request, Record record) {
  std::lock_guard<std::mutex> lock(requests().mutex);
  n_requests += requests().records.insert_or_assign(request, std::move(record)).second;
}

std::vector<Record> take_open_records() {
  std::lock_guard<std::mutex> lock(requests().mutex);
  std::vector<Record> all;
  for (auto& [handle, record] : requests().records) all.push_back(std::move(record));
  n_requests -= int(all.size());
  requests().records.clear();
  return all;
}

int keep(std::shared_ptr<Prepared> prepared, Word* handle) {
  std::map<Word, std::shared_ptr<Prepared>> place{{0, std::move(prepared)}};
  auto entry = place.extract(place.begin());
  if (int error = make_stand_in(handle)) return error;
  entry.key() = *handle;
  std::lock_guard<std::mutex> lock(requests().mutex);
  requests().prepared.insert(std::move(entry));
  n_requests++;
  return 0;
}

namespace {

// Forgets a request that is about to be freed. Nothing of it needs memory but a record.
void forget(Word handle) {
  if (has_record(handle)) close_record(handle, nullptr, 0);
  if (auto pending = pending_of(handle)) pending->released = true;
  std::shared_ptr<Prepared> found = prepared_of(handle);
  if (!found) return;
  {
    std::lock_guard<std::mutex> lock(requests().mutex);
    n_requests -= int(requests().prepared.erase(handle));
  }
  take_byte();
  if (found->started) free_request(found->started);
}

// Starts a prepared call; false of any other request.
bool start(const void* place, int* error) {
  auto prepared = prepared_of(library().handle_at(place));
  if (!prepared) return false;
  *error = guarded(library().comm_world, [&] { return prepared->start(&prepared->started); });
  return true;
}

}  // namespace

// Seconds for which what the program has freed may take at the end.
constexpr double freed_seconds = 60;

void end_requests(double seconds) {
  std::vector<std::shared_ptr<PendingOperation>> all, freed;
  {
    std::lock_guard<std::mutex> lock(requests().mutex);
    for (auto& [handle, pending] : requests().freed) freed.push_back(pending);
    for (auto& [handle, pending] : requests().pending) (pending->released ? freed : all).push_back(pending);
  }
  // Of these MPI would wait for the receivers.
  for (auto& pending : freed) pending->join(freed_seconds);
  const double until = engine::now() + seconds;
  for (auto& pending : all) pending->join(std::max(until - engine::now(), 0.0));
  if (!mirror) return;
  while (take_byte()) {}
  mirror = 0;
}

}  // namespace layer
}  // namespace compcoll

using namespace compcoll::layer;

// -- starts, and the end

C_FUNCTION(Start, (Word request)) {
  int error = 0;
  if (any_requests() && start(reinterpret_cast<void*>(request), &error)) return error;
  return next_Start(request);
}

C_FUNCTION(Startall, (Word n, char* given)) {
  int error = 0;
  if (!any_requests()) return next_Startall(n, given);
  for (int i = 0; i < int32_t(n) && !error; i++)
    error = layer_MPI_Start(reinterpret_cast<Word>(given + size_t(i) * library().handle_nbytes()));
  return error;
}

C_FUNCTION(Request_free, (void* request)) {
  forget(library().handle_at(request));
  return next_Request_free(request);
}
