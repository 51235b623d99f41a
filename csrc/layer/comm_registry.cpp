// The marked communicators of this process: how they are made, found and freed.
#include "comm.h"

#include <sched.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/clock.h"
#include "pending_operation.h"
#include "notices.h"

namespace compcoll {
namespace layer {

namespace {

MpiFunction comm_dup("PMPI_Comm_dup"), comm_free("PMPI_Comm_free"), comm_size("PMPI_Comm_size"),
    comm_rank("PMPI_Comm_rank"), comm_group("PMPI_Comm_group"), comm_set_name("PMPI_Comm_set_name"),
    comm_set_attr("PMPI_Comm_set_attr"), comm_get_attr("PMPI_Comm_get_attr"),
    comm_delete_attr("PMPI_Comm_delete_attr"), comm_create_keyval("PMPI_Comm_create_keyval"),
    comm_test_inter("PMPI_Comm_test_inter"), group_translate("PMPI_Group_translate_ranks"),
    group_free("PMPI_Group_free"), bcast("PMPI_Bcast");

struct Registry {
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<Comm>> comms;     // by their numbers
  std::map<void*, Word> objects;                       // handles by the addresses of mpi4py's objects
  std::map<uint64_t, std::shared_ptr<Comm>> ended;  // freed by MPI, whose callback cannot free their state
  std::vector<std::shared_ptr<Notices>> left;  // from communicators freed with pending messages
};

Registry& registry() {
  static auto one = new Registry;
  return *one;
}

// MPI's callback when it frees a communicator; any thread may run it, perhaps after Python has ended.
int ended(Word, int, void* value, void*) {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.comms.find(reinterpret_cast<uint64_t>(value));
  if (found == all.comms.end()) return 0;
  comm_table.load()->remove(found->second->handle);
  found->second->gone = true;
  for (auto& [address, handle] : all.objects)
    if (handle == found->second->handle) library().put_handle(library().comm_null, address), handle = 0;
  for (int name = 0; name < n_names; name++) totals[name].calls += found->second->calls[name];
  all.ended.insert(all.comms.extract(found));  // must not allocate: the callback cannot report an error
  return 0;
}

// MPI's callback when the origin of duplicates is freed by a call that bypasses the layer.
int origin_ended(Word handle, int, void*, void*) {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [number, comm] : all.comms)
    if (comm->origin_handle == library().handle_of(handle)) comm->origin_handle = 0;
  return 0;
}

template <int (*on_delete)(Word, int, void*, void*)>
int keyval() {
  static const int key = [] {
    int made = 0;
    comm_create_keyval.call(&copy_no_attribute, on_delete, &made, static_cast<void*>(nullptr));
    return made;
  }();
  return key;
}

// Frees the state of communicators that MPI has freed, and notices without pending messages.
void clear_ended() {
  std::map<uint64_t, std::shared_ptr<Comm>> some;
  std::vector<std::shared_ptr<Notices>> left;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    some.swap(registry().ended);
    left.swap(registry().left);
  }
  for (auto& [number, comm] : some)
    if (comm->notices) left.push_back(comm->notices);
  some.clear();
  for (auto& one : left) {
    if (one.use_count() == 1 && one->is_drained()) continue;
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().left.push_back(one);
  }
}

// Translates the ranks of a communicator to ranks in another one.
std::vector<int> ranks_in(Word handle, int size, Word other) {
  const Library& mpi = library();
  Word groups[2] = {};
  std::vector<int> mine(static_cast<size_t>(size)), theirs(static_cast<size_t>(size), -1);
  for (int i = 0; i < size; i++) mine[size_t(i)] = i;
  if (comm_group.call(handle, groups) || comm_group.call(other, groups + 1)) return theirs;
  group_translate.call(mpi.handle_of(groups[0]), size, mine.data(), mpi.handle_of(groups[1]), theirs.data());
  group_free.call(groups);
  group_free.call(groups + 1);
  return theirs;
}

}  // namespace

void forget_calls() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  for (auto& [number, comm] : registry().comms) comm->forget();
}

void look_at_all() {
  looks_at_all = true;
  set_limits();
}

void set_limits() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  for (auto& [number, comm] : registry().comms) comm->set_limit();
}

Comm* find(Word handle) { return look_up(handle); }

std::shared_ptr<Comm> find_by(uint64_t number) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto found = registry().comms.find(number);
  return found == registry().comms.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Comm>> with_receives_by_mpi() {
  std::vector<std::shared_ptr<Comm>> some;
  std::lock_guard<std::mutex> lock(registry().mutex);
  for (auto& [number, comm] : registry().comms)
    if (comm->receives_by_mpi) some.push_back(comm);
  return some;
}

namespace {

int add(const std::shared_ptr<Comm>& comm) {
  const uint64_t number = comm->number();
  const Word handle = comm->handle;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().comms[number] = comm;
    put_into_table(handle, comm.get());
  }
  const int error = comm_set_attr.call(handle, keyval<ended>(), reinterpret_cast<void*>(number));
  if (error) ended(handle, 0, reinterpret_cast<void*>(number), nullptr);
  return error;
}

// Reserves tags in `shared`, the private communicator of the parent's duplicates, while it has tags left,
// else in a new private communicator; MPI's error code.
int begin(Comm& comm, std::shared_ptr<PrivateComm>* shared) {
  if (comm.size == 1) return 0;
  int64_t first = -1;
  if (shared) {
    // Threads that duplicate duplicates may reserve tags in a different order on each rank, so that rank 0
    // decides.
    if (comm.rank == 0) first = (*shared)->reserve_tags();
    if (int error = bcast.call(&first, 1, library().uint64, 0, comm.handle)) return error;
  }
  if (first >= 0) comm.frames = *shared;
  else if (int error = PrivateComm::make(comm.handle, &comm.frames)) return error;
  if (first < 0) first = comm.frames->reserve_tags();
  comm.shared = comm.frames;
  if (shared) *shared = comm.frames;
  const CallTags& tags = comm.tags;
  comm.tags.begin(int(first), PrivateComm::n_tags());
  comm.notices =
      std::make_shared<Notices>(comm.frames, tags.notice(), tags.first_of_messages(), tags.n_of_messages());
  return 0;
}

// Waits for pending calls, and frees the resources whose release is collective.
void end(Comm& comm) {
  comm.tags.join();
  comm.forget();
  if (comm.notices) {
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().left.push_back(std::move(comm.notices));
  }
  comm.frames.reset();
  comm.shared.reset();
  comm.persistent_tags = PersistentTags();
  comm_delete_attr.call(comm.handle, keyval<ended>());
}

}  // namespace

void receive_notices(double seconds) {
  std::vector<std::shared_ptr<Notices>> all;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    all = registry().left;
    for (auto& [number, comm] : registry().comms)
      if (comm->notices) all.push_back(comm->notices);
    for (auto& [number, comm] : registry().ended)
      if (comm->notices) all.push_back(comm->notices);
  }
  const double until = engine::now() + seconds;
  for (auto& one : all)
    while (!one->up_to_date() && engine::now() < until) sched_yield();
}

int mark(Word handle, const Settings& settings, std::shared_ptr<const Origin> origin, Comm** marked) {
  clear_ended();
  handle = library().handle_of(handle);
  auto comm = std::make_shared<Comm>(handle, origin->rank, origin->size, settings, origin);
  *marked = comm.get();
  if (int error = begin(*comm, nullptr)) return error;
  return add(comm);
}

int duplicate(Word handle, const Settings& settings, std::shared_ptr<const Origin> origin,
              std::string settings_text, Comm** made) {
  clear_ended();
  const Library& mpi = library();
  Word copy = 0;
  handle = mpi.handle_of(handle);
  if (int error = comm_dup.call(handle, &copy)) return error;
  const std::string name = name_of(handle);
  if (!name.empty()) comm_set_name.call(mpi.handle_of(copy), name.c_str());
  auto comm = std::make_shared<Comm>(mpi.handle_of(copy), origin->rank, origin->size, settings, origin);
  comm->origin_handle = handle, comm->settings_text = std::move(settings_text);
  *made = comm.get();
  int failed = begin(*comm, nullptr);
  if (!failed) failed = add(comm);
  if (failed) {
    comm_free.call(&copy);
    return failed;
  }
  void* value = nullptr;
  int known = 0;  // setting the attribute again would run its delete callback
  if (int error = comm_get_attr.call(handle, keyval<origin_ended>(), &value, &known); error || known)
    return error;
  return comm_set_attr.call(handle, keyval<origin_ended>(), value);
}

Comm* find_duplicate(Word handle, const std::string& settings_text) {
  handle = library().handle_of(handle);
  std::lock_guard<std::mutex> lock(registry().mutex);
  for (auto& [number, comm] : registry().comms) {
    if (comm->origin_handle == handle && comm->settings_text == settings_text && !comm->broken())
      return comm.get();
  }
  return nullptr;
}

std::vector<uint64_t> duplicates_of(Word handle) {
  handle = library().handle_of(handle);
  std::vector<uint64_t> numbers;
  std::lock_guard<std::mutex> lock(registry().mutex);
  for (auto& [number, comm] : registry().comms)
    if (comm->origin_handle == handle) numbers.push_back(number);
  return numbers;
}

int inherit(Comm& parent, Word made, bool same_ranks) {
  clear_ended();
  const Library& mpi = library();
  made = mpi.handle_of(made);
  int inter = 0;
  comm_test_inter.call(made, &inter);
  if (inter) return 0;
  auto origin = std::make_shared<Origin>();
  comm_size.call(made, &origin->size);
  comm_rank.call(made, &origin->rank);
  origin->python_ref = std::make_shared<PythonObject>(next_number());
  origin->parent = parent.origin;
  if (same_ranks) {
    origin->key = mixed(parent.origin->key, ++parent.n_made);
    for (int i = 0; i < origin->size; i++) origin->ranks.push_back(i);
  } else {
    origin->ranks = ranks_in(made, origin->size, parent.handle);
    std::random_device random;
    origin->key = uint64_t(random()) << 32 | random();
    if (int error = bcast.call(&origin->key, 1, mpi.uint64, 0, made)) return error;
  }
  Settings settings = parent.settings;
  settings.alike = false;
  auto comm = std::make_shared<Comm>(made, origin->rank, origin->size, settings, origin);
  if (int error = begin(*comm, same_ranks ? &parent.shared : nullptr)) return error;
  return add(comm);
}

namespace {

// Frees the duplicates of a communicator, recursively.
void free_duplicates(Word handle) {
  std::vector<std::shared_ptr<Comm>> made;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    for (auto& [number, comm] : registry().comms)
      if (comm->origin_handle == handle) made.push_back(comm);
  }
  for (auto& comm : made) {
    free_duplicates(comm->handle);
    Word place;
    library().put_handle(comm->handle, &place);
    end(*comm);
    comm_free.call(&place);
  }
}

}  // namespace

bool before_free(Word handle) {
  handle = library().handle_of(handle);
  if (handle == library().comm_world || handle == library().comm_self) return false;  // MPI refuses that
  if (Comm* comm = find(handle)) {
    if (--comm->n_wrappers > 0) return true;
    end(*comm->shared_from_this());
    clear_ended();  // not for unmarked ones: MPI may free those in its callbacks
  }
  free_duplicates(handle);
  return false;
}

void note_object(Word handle, void* address) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().objects[address] = library().handle_of(handle);
}

void drop_object(void* address) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().objects.erase(address);
}

size_t n_marked() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  return registry().comms.size();
}

uint64_t n_calls(int name) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  uint64_t n = totals[name].calls;
  for (auto& [number, comm] : registry().comms) n += comm->calls[name];
  return n;
}

}  // namespace layer
}  // namespace compcoll
