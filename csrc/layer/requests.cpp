#include "requests.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "engine/clock.h"
#include "entry.h"
#include "tags.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction grequest_start("PMPI_Grequest_start"), recv_init("PMPI_Recv_init"), isend("PMPI_Isend"),
    iprobe("PMPI_Iprobe"), mpi_recv("PMPI_Recv"), request_free("PMPI_Request_free");

struct Requests {
  std::mutex mutex;  // never held during a wait, as MPI's callbacks take it
  std::map<Word, RequestRef> table;
  // Entries of generalized requests that MPI has freed, and whose handles it may reuse. MPI's callback keeps
  // them here, as it can neither free communicators nor allocate memory.
  std::multimap<Word, RequestRef> freed;
};

Requests& requests() {
  static auto one = new Requests;
  return *one;
}

RequestRef find_locked(Word handle) {
  auto found = requests().table.find(handle);
  return found == requests().table.end() ? nullptr : found->second;
}

// A node of the table, allocated before the request is made: inserting it needs no memory.
using TableNode = std::map<Word, RequestRef>::node_type;

TableNode make_node(RequestRef entry) {
  std::map<Word, RequestRef> one{{0, std::move(entry)}};
  return one.extract(one.begin());
}

// Inserts a node; returns the entry of an earlier request with the same handle, if there is one.
RequestRef add(TableNode place, Word handle) {
  place.key() = place.mapped()->handle = handle;
  std::lock_guard<std::mutex> lock(requests().mutex);
  auto added = requests().table.insert(std::move(place));
  if (added.inserted) return n_requests++, nullptr;
  added.position->second.swap(added.node.mapped());
  return std::move(added.node.mapped());
}

void remove(const RequestEntry& entry) {
  std::lock_guard<std::mutex> lock(requests().mutex);
  if (find_locked(entry.handle).get() == &entry) n_requests -= int(requests().table.erase(entry.handle));
}

// -- generalized requests: their callbacks always succeed, and waits report errors. `state` is the entry,
// which is in the table until MPI frees the request

int query(void* state, void* status) {
  static_cast<RequestEntry*>(state)->operation->fill_status(status);
  return 0;
}

int freed(void* state) {
  std::lock_guard<std::mutex> lock(requests().mutex);
  requests().freed.insert(requests().table.extract(static_cast<RequestEntry*>(state)->handle));
  n_requests--;
  return 0;
}

int cancel(void* state, int is_complete) {
  if (!is_complete) static_cast<RequestEntry*>(state)->operation->cancel();
  return 0;
}

// Drops ended calls whose requests MPI has freed, unless a wait is about to complete the record.
void drop_freed() {
  std::multimap<Word, RequestRef> old;
  {
    std::lock_guard<std::mutex> lock(requests().mutex);
    auto& all = requests().freed;
    for (auto one = all.begin(); one != all.end();) {
      const auto next = std::next(one);
      if (one->second->operation->ended() && one->second.use_count() == 1) old.insert(all.extract(one));
      one = next;
    }
  }
  for (const auto& one : old) complete_record(one.second, 0);
}

// -- stand-ins: receives of no bytes, with a message of one byte sent to each. Code that is not hooked gets
// an error if it starts one

Word private_self = 0;
const char byte = 0;

int make_stand_in(Word* handle) {
  const Library& mpi = library();
  int failed = 0;
  if (!self_comm(&failed)) return failed;
  Word made = 0, sent = 0;
  if (int error = isend.call(&byte, 1, mpi.byte, 0, 0, private_self, &sent)) return error;
  request_free.call(&sent);
  int error = recv_init.call(Word(0), Word(0), mpi.byte, 0, 0, private_self, &made);
  *handle = mpi.handle_of(made);
  return error;
}

// Receives the byte of a freed stand-in; false if there is none, because a stand-in was started.
bool take_byte() {
  int found = 0;
  char received;
  const Library& mpi = library();
  iprobe.call(0, 0, private_self, &found, mpi.ignored_status);
  if (found) mpi_recv.call(&received, 1, mpi.byte, 0, 0, private_self, mpi.ignored_status);
  return found;
}

// Forgets a request that is about to be freed.
void forget(const RequestRef& entry) {
  complete_record(entry, 0);
  if (entry->operation) entry->operation->released = true;
  if (!entry->persistent) return;
  remove(*entry);
  take_byte();
  if (entry->persistent->started) free_request(entry->persistent->started);
}

}  // namespace

std::atomic<int> n_requests{0};

RequestRef find_request(Word handle) {
  if (!any_requests()) return nullptr;
  std::lock_guard<std::mutex> lock(requests().mutex);
  return find_locked(handle);
}

std::shared_ptr<PendingOperation> pending_of(Word handle) {
  const RequestRef entry = find_request(handle);
  return entry ? entry->operation : nullptr;
}

std::vector<KnownRequest> find_requests(const char* array, size_t n) {
  std::vector<KnownRequest> known;
  std::lock_guard<std::mutex> lock(requests().mutex);
  for (size_t i = 0; i < n; i++) {
    const Word handle = library().handle_at(array + i * library().handle_nbytes());
    KnownRequest one = {i, handle, find_locked(handle), nullptr, false};
    if (one.entry && one.entry->persistent) {
      one.persistent = one.entry->persistent;
      one.handle = one.persistent->started;
      one.entry = find_locked(one.handle);
    }
    if (one.persistent ? one.handle != 0 : one.entry != nullptr) known.push_back(std::move(one));
  }
  return known;
}

Word self_comm(int* error) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const int code = private_self ? 0 : make_private(library().comm_self, &private_self);
  if (error) *error = code;
  return private_self;
}

int start_request(const std::shared_ptr<PendingOperation>& operation, Word* request) {
  drop_freed();
  auto entry = std::make_shared<RequestEntry>();
  entry->operation = operation;
  TableNode place = make_node(entry);
  void* const state = entry.get();
  if (int error = grequest_start.call(&query, &freed, &cancel, state, &entry->handle)) return error;
  add(std::move(place), *request = library().handle_of(entry->handle));
  return 0;
}

void free_request(Word request) {
  Word place;
  library().put_handle(request, &place);
  request_free.call(&place);
}

void attach_record(Word handle, Record record) {
  if (const RequestRef known = find_request(handle); known && known->operation) {
    std::lock_guard<std::mutex> lock(requests().mutex);
    known->record = std::move(record);
    return;
  }
  auto entry = std::make_shared<RequestEntry>();
  entry->record = std::move(record);
  // MPI may give the same handle to all requests that are complete at once.
  if (const RequestRef old = add(make_node(std::move(entry)), handle)) complete_record(old, 0);
}

std::vector<Record> take_open_records() {
  std::vector<Record> records;
  auto take = [&records](const auto& entries) {
    for (const auto& one : entries) {
      std::optional<Record>& record = one.second->record;
      if (record) records.push_back(std::move(*record));
      record.reset();
    }
  };
  std::lock_guard<std::mutex> lock(requests().mutex);
  take(requests().table);
  take(requests().freed);
  return records;
}

void complete_record(const RequestRef& entry, int error, std::shared_ptr<const Outcome> outcome) {
  if (entry->operation && !recorder.on()) return;
  std::optional<Record> record;
  {
    std::lock_guard<std::mutex> lock(requests().mutex);
    record.swap(entry->record);
  }
  if (!entry->operation && !entry->persistent) remove(*entry);
  if (!record) return;
  record->end = engine::now();
  if (error) record->error = error;
  if (outcome) record->outcome = std::move(outcome);
  recorder.add(std::move(*record));
}

int register_persistent(std::shared_ptr<PersistentOperation> prepared, Word* handle) {
  auto entry = std::make_shared<RequestEntry>();
  entry->persistent = std::move(prepared);
  TableNode place = make_node(std::move(entry));
  if (int error = make_stand_in(handle)) return error;
  add(std::move(place), *handle);
  return 0;
}

// Seconds to wait at the end for operations whose requests the program has freed.
constexpr double freed_seconds = 60;

void end_requests(double seconds) {
  std::vector<std::shared_ptr<PendingOperation>> all, freed;
  {
    std::lock_guard<std::mutex> lock(requests().mutex);
    for (auto& [handle, entry] : requests().freed) freed.push_back(entry->operation);
    for (auto& [handle, entry] : requests().table)
      if (entry->operation) (entry->operation->released ? freed : all).push_back(entry->operation);
  }
  // MPI would wait for the receivers of these too.
  for (auto& pending : freed) pending->join(freed_seconds);
  const double until = engine::now() + seconds;
  for (auto& pending : all) pending->join(std::max(until - engine::now(), 0.0));
  if (!private_self) return;
  while (take_byte()) {}
  private_self = 0;
}

}  // namespace layer
}  // namespace compcoll

using namespace compcoll::layer;

// -- starts, and the end

C_FUNCTION(Start, (void* request)) {
  const RequestRef entry = find_request(library().handle_at(request));
  if (!entry || !entry->persistent) return next_Start(request);
  return guarded(library().comm_world, [&] { return entry->persistent->start(&entry->persistent->started); });
}

C_FUNCTION(Startall, (Word n, char* given)) {
  int error = 0;
  if (!any_requests()) return next_Startall(n, given);
  for (int i = 0; i < int32_t(n) && !error; i++)
    error = layer_MPI_Start(given + size_t(i) * library().handle_nbytes());
  return error;
}

C_FUNCTION(Request_free, (void* request)) {
  if (const RequestRef entry = find_request(library().handle_at(request))) forget(entry);
  return next_Request_free(request);
}
