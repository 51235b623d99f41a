#include "call.h"

#include <algorithm>
#include <vector>

#include "interpreter.h"
#include "requests.h"

namespace compcoll {
namespace preload {
namespace {

Own type_size("PMPI_Type_size"), comm_size("PMPI_Comm_size"), comm_rank("PMPI_Comm_rank"),
    comm_test_inter("PMPI_Comm_test_inter"), comm_get_attr("PMPI_Comm_get_attr"),
    comm_set_attr("PMPI_Comm_set_attr"), comm_delete_attr("PMPI_Comm_delete_attr"),
    comm_create_keyval("PMPI_Comm_create_keyval"), allreduce("PMPI_Allreduce");

// Of communicators that nobody accelerates: intercommunicators, and those of one rank.
Comm untouched;

int copy_nothing(Word, int, void*, void*, void*, int* flag) { return *flag = 0; }

int free_attribute(Word handle, int, void* value, void*) {
  auto comm = static_cast<Comm*>(value);
  if (comm == &untouched) return 0;
  const Dispatch* python = dispatch_if_loaded();
  if (python) python->release(library().handle_of(handle), comm);
  delete comm;
  return 0;
}

int keyval() {
  static const int key = [] {
    int made = 0;
    comm_create_keyval.call(&copy_nothing, &free_attribute, &made, static_cast<void*>(nullptr));
    return made;
  }();
  return key;
}

Comm* attached(Word handle) {
  void* value = nullptr;
  int flag = 0;
  if (comm_get_attr.call(handle, keyval(), &value, &flag)) return nullptr;
  return flag ? static_cast<Comm*>(value) : nullptr;
}

bool world_attached = false;

Own comm_group("PMPI_Comm_group"), group_translate("PMPI_Group_translate_ranks"),
    group_free("PMPI_Group_free");

// Whether all ranks of a communicator are of this program: others may know nothing of compcoll.
bool is_within_world(Word handle, int size) {
  const Library& mpi = library();
  if (handle == mpi.comm_world) return true;
  Word groups[2] = {};
  if (comm_group.call(handle, groups) || comm_group.call(mpi.comm_world, groups + 1)) return false;
  std::vector<int> ranks(static_cast<size_t>(size)), there(static_cast<size_t>(size), -1);
  for (int i = 0; i < size; i++) ranks[size_t(i)] = i;
  group_translate.call(mpi.handle_of(groups[0]), size, ranks.data(), mpi.handle_of(groups[1]), there.data());
  group_free.call(groups);
  group_free.call(groups + 1);
  return *std::min_element(there.begin(), there.end()) >= 0;
}

// Makes what a communicator is to have; collective over it. Its ranks agree first, since one whose Python does
// not start would leave the others waiting; those of an attached `parent` have.
int attach(Word handle, bool is_new, Comm** result, const Comm* parent = nullptr, bool is_duplicate = false) {
  int inter = 0, size = 1, mine = dispatch() != nullptr, all = 0;
  comm_test_inter.call(handle, &inter);
  if (!inter) comm_size.call(handle, &size);
  *result = &untouched;
  if (parent && size > 1) {
    all = 1;
  } else if (size > 1 && is_within_world(handle, size)) {
    int error = allreduce.call(&mine, &all, 1, library().int_type, library().min_op, handle);
    if (error) return error;
  }
  if (all) {
    auto comm = new Comm;
    comm->size = size, comm->messages = is_new;
    comm_rank.call(handle, &comm->rank);
    if (int error = dispatch()->attach(handle, comm, parent, is_duplicate)) {
      delete comm;
      return error;
    }
    *result = comm;
  }
  return comm_set_attr.call(handle, keyval(), static_cast<void*>(*result));
}

// Bytes of an entry; 0 for what is no type, which MPI has to say.
uint64_t nbytes_of(Word type) {
  const Library& mpi = library();
  type = mpi.handle_of(type);
  if (mpi.abi == Abi::mpich && type >> 30 == 1) return type >> 8 & 0xff;  // a predefined one says its size
  int size = 0;
  return type == mpi.type_null || type_size.call(type, &size) || size < 0 ? 0 : uint64_t(size);
}

// A count among the arguments, or in an array of them.
int64_t count_of(Word word, bool wide) { return wide ? int64_t(word) : int32_t(word); }
int64_t count_of(Word array, int i, bool wide) {
  return wide ? reinterpret_cast<const int64_t*>(array)[i] : reinterpret_cast<const int32_t*>(array)[i];
}

// A handle in an array of C.
Word handle_at(Word array, int i) {
  if (library().abi == Abi::mpich) return reinterpret_cast<const uint32_t*>(array)[i];
  return reinterpret_cast<const Word*>(array)[i];
}

// Bytes of the largest message, where one count tells that: the receive count where it is significant on all
// ranks, else that of the side which is not in place.
uint64_t of_one_count(const Operation& op, bool wide, const Word* words) {
  Word in_place = library().in_place;
  bool by_recv = op.root < 0 || op.reduction >= 0 || op.send.buf < 0;
  if (!by_recv) by_recv = op.send_many ? words[op.recv.buf] != in_place : words[op.send.buf] == in_place;
  const Positions& side = by_recv ? op.recv : op.send;
  return bytes(count_of(words[side.count], wide), words[side.type]);
}

// Bytes of the largest message of this rank in a call with counts for each rank.
uint64_t of_counts(const Operation& op, bool wide, const Word* words, const Comm& comm) {
  uint64_t most = 0;
  bool at_root = op.root < 0 || int32_t(words[op.root]) == comm.rank;
  auto look = [&](bool many, const Positions& side) {
    Word counts = words[side.count], type = words[side.type];
    if (words[side.buf] == library().in_place || (op.root >= 0 && many != at_root)) return;
    if (!many) most = std::max(most, bytes(count_of(counts, wide), type));
    for (int i = 0; many && counts && i < comm.size; i++) {
      int64_t n = count_of(counts, i, wide);
      if (n > 0) most = std::max(most, bytes(n, op.kinds[side.type] == 'w' ? handle_at(type, i) : type));
    }
  };
  if (op.pairs) look(op.send_many, op.send);
  look(op.kinds[op.recv.count] == 'v', op.recv);
  return most;
}

Side side_of(const Operation& op, const Positions& at, bool wide, const Word* words) {
  auto list = [&](int i) { return op.kinds[i] == 'v' ? reinterpret_cast<const void*>(words[i]) : nullptr; };
  bool typed = op.kinds[at.type] == 'w';
  Side side = {};
  side.kind = typed ? 'w' : op.kinds[at.count + 1];
  side.buf = at.buf < 0 ? 0 : words[at.buf];
  side.type = typed ? words[at.type] : library().handle_of(words[at.type]);
  side.counts = list(at.count), side.displs = list(at.count + 1);
  if (!side.counts) side.count = count_of(words[at.count], wide);
  return side;
}

// Whether Python is to be asked. All ranks that have to agree on that come to the same result. Calls that pairs
// of ranks decide on are counted by all of them, unless they are blocking.
bool is_large(const Operation& op, Form form, bool wide, const Word* words, const Comm& comm) {
  if (comm.size == 1) return false;
  if (op.pairs && (form != blocking || !comm.pairs_alone)) return true;
  uint64_t nbytes = op.listed ? of_counts(op, wide, words, comm) : of_one_count(op, wide, words);
  if (op.reduction >= 0 && !op.listed && !op.send_many) nbytes /= uint64_t(comm.size);
  return nbytes && nbytes >= comm.min_nbytes;
}

// Whether MPICH, under either ABI, rejects the buffers, which are one and the same without MPI_IN_PLACE.
bool is_aliased(Name name, bool wide, const Word* words) {
  const Operation& op = operations[name];
  const Library& mpi = library();
  if (name != Alltoall && name != Alltoallv && name != Alltoallw && name != Allreduce) return false;
  Word send = words[op.send.count], recv = words[op.recv.count];
  bool alike = op.pairs ? send == recv : count_of(send, wide) == count_of(recv, wide);
  return mpi.abi != Abi::open_mpi && alike && words[op.send.buf] && words[op.send.buf] != mpi.in_place &&
         words[op.send.buf] == words[op.recv.buf] &&
         mpi.handle_of(words[op.send.type]) == mpi.handle_of(words[op.recv.type]);
}

}  // namespace

uint64_t bytes(int64_t count, Word type) { return count > 0 ? uint64_t(count) * nbytes_of(type) : 0; }

bool is_large(const Comm& comm, int64_t count, Word type) { return bytes(count, type) >= comm.min_nbytes; }

const Comm* find(Word handle) {
  handle = library().handle_of(handle);
  return handle == library().comm_null ? nullptr : attached(handle);
}

bool offer(Name name, Form form, bool wide, const Word* words, Word* request, const void* caller,
           int* error) {
  const Operation& op = operations[name];
  const Dispatch* python = dispatch_if_loaded();
  if (!python) python = dispatch();
  if (!python) return false;
  if (!op.listed && of_one_count(op, wide, words) < python->min_nbytes) return false;
  if (op.reduction >= 0 && library().handle_of(words[op.reduction]) != python->sum) return false;
  Word handle = library().handle_of(words[op.comm]);
  if (handle == library().comm_null) return false;
  Comm* comm = attached(handle);
  if (!comm) {
    // A nonblocking call waits for nobody; blocking ones come in the same order on all ranks.
    Inside within;
    if (form != blocking || (*error = attach(handle, false, &comm))) return form == blocking;
  }
  if (is_aliased(name, wide, words) || !is_large(op, form, wide, words, *comm)) return false;
  Inside within;
  Call call = {name, form, wide, comm, side_of(op, op.send, wide, words), side_of(op, op.recv, wide, words)};
  call.root = op.root < 0 ? 0 : int32_t(words[op.root]), call.caller = caller;
  *error = python->run(&call);
  if (*error == declined) return false;
  if (request && !*error) *request = form == persistent ? keep(call.prepared, call.request) : call.request;
  return true;
}

const Comm* find_parent(Word handle) {
  const Comm* comm = find(handle);
  return comm == &untouched ? nullptr : comm;
}

int attach_new(Word handle, const Comm* parent, bool is_duplicate) {
  Inside within;
  Comm* comm;
  return attach(library().handle_of(handle), true, &comm, parent, is_duplicate);
}

int attach_world() {
  int error = attach_new(library().comm_world);
  world_attached = !error;
  return error;
}

bool world_is_attached() { return world_attached; }

void release(Word handle) {
  if (!dispatch_if_loaded()) return;
  Inside within;
  handle = library().handle_of(handle);
  if (attached(handle)) comm_delete_attr.call(handle, keyval());
}

}  // namespace preload
}  // namespace compcoll

// Of a Python program, whose interpreter runs when MPI begins.
extern "C" __attribute__((visibility("default"))) int compcoll_preload_attach_world() {
  return compcoll::preload::attach_world();
}
