#include "calls.h"

#include <algorithm>

#include "arguments.h"
#include "check.h"
#include "devices.h"
#include "functions.h"
#include "kept.h"
#include "requests.h"
#include "collective_operation.h"

namespace compcoll {
namespace layer {
namespace {

Own allreduce("PMPI_Allreduce"), error_class("PMPI_Error_class");

thread_local bool root_is_read_only = false;
thread_local int phase = 0;

using WayRef = std::shared_ptr<const Way>;

int failed(const Call& call, int code) { return code ? raise(call.comm.handle, code) : 0; }

// MPI carries a call out for this reason.
void note_plain(const Call& call, WayRef way) {
  auto outcome = std::make_shared<Outcome>();
  outcome->name = call.name, outcome->way = std::move(way);
  call.comm.last.note(std::move(outcome));
}

// The same of a call that `strict` refuses to leave to MPI; false where it does.
bool decline(const Call& call, const char* reason, int* error) {
  if (call.comm.settings.strict) {
    const std::string text = std::string(operations[call.name].name) + " would be left to MPI: " + reason;
    *error = failed(call, code_of(FALLBACK, text));
    return false;
  }
  note_plain(call, because(reason));
  return true;
}

// The name of a communicator, on which all ranks have to agree where rules look at it; collective. MPI's
// code.
int agree_on_name(Comm& comm, std::string* name) {
  *name = name_of(comm.handle);
  uint64_t hash = 14695981039346656037u;
  for (char letter : *name) hash = (hash ^ uint8_t(letter)) * 1099511628211u;
  uint64_t extremes[] = {hash, ~hash};
  const Library& mpi = library();
  if (int error = allreduce.call(mpi.in_place, extremes, 2, mpi.uint64, mpi.max, comm.handle)) return error;
  if (extremes[0] == ~extremes[1]) return 0;
  return raise(comm.handle, code_of(POLICY, "the ranks name this communicator differently, and this one '" +
                                                *name + "'; rules look at its name"));
}

// -- what Python decides

// Asks Python; null where there is no interpreter any more.
std::shared_ptr<Entry> prepare(const Call& call, const Arguments& arguments, Description* about) {
  arguments.blocks(&about->sent, &about->received);
  const uint32_t decided = call.op().pairs ? 0 : about->element;
  auto describe = [&](const std::vector<Block>& blocks, std::vector<Description::Message>* messages) {
    for (const Block& block : blocks) {
      Description::Message one = {};
      one.element = decided ? decided : block.type && block.type->known ? block.type->element : 0;
      const uint32_t each = itemsize(real_of(one.element));
      one.n = each ? block.nbytes() / each : 0;
      one.shape = shape_of(block);
      const Room room = room_of(block);
      if (room.any && !room.layout) one.data = arguments.sides[room.side].buf + Word(room.offset);
      one.gpu = room.any ? call.gpus[room.side] : engine::NO_GPU;
      messages->push_back(std::move(one));
    }
  };
  describe(about->sent, &about->send);
  describe(about->received, &about->recv);
  about->in_place = arguments.sides[send_side].in_place && call.op().send_many;
  if (!ask_python([about](const Python& python) { python.prepare(about); })) return nullptr;
  if (about->idle) call.comm.note_idle();
  return about->entry;
}

// -- memory of GPUs

// Leaves a nonblocking call to MPI, whose request completes with what else belongs to it; MPI's code.
int submit_to_mpi(const Call& call) {
  auto work =
      std::make_shared<CollectiveOperation>(call.comm.shared_from_this(), nullptr, call.name, call.form);
  std::vector<Word> words(call.words, call.words + call.n_words);
  words.back() = reinterpret_cast<Word>(&work->plain);
  work->check = call.check;
  work->staged = call.staged;
  work->plains.push_back(&work->plain);
  if (int error = plain(call, words.data())) return error;
  return work->submit(call.request);
}

// Whether something belongs to a call that MPI carries out until its end.
bool submits(const Call& call) { return call.form == nonblocking && (call.check || call.staged); }

// MPI carries a call out; its code.
int mpi_carries_out(const Call& call) {
  if (call.staged && call.form == persistent) return keep_call(call, nullptr, Arguments(call), 0);
  if (!call.on_devices()) return submits(call) ? submit_to_mpi(call) : plain(call, call.words);
  if (!call.on_copies()) {  // MPI does not know the caller's streams
    Staged all(call, {call.gpus[send_side], call.gpus[recv_side]});
    all.take(call.marks);
    if (all.code()) return failed(call, all.code());
    return submits(call) ? submit_to_mpi(call) : plain(call, call.words);
  }
  const Arguments arguments(call);
  Call host = call;
  host.staged = std::make_shared<Staged>(call, arguments, std::vector<uint8_t>(), std::vector<uint8_t>());
  host.words = host.staged->words();
  host.gpus[send_side] = host.gpus[recv_side] = engine::NO_GPU;
  if (call.form == persistent) return keep_call(host, nullptr, Arguments(host), 0);
  host.staged->take(call.marks);
  if (call.form == blocking) {
    if (const int error = plain(host, host.words)) return error;
    host.staged->give_back();
    return failed(call, host.staged->code());
  }
  return submit_to_mpi(host);
}

// Whether kernels reach the blocks of a call where they lie.
bool fits_devices(const Call& call, const Arguments& arguments) {
  const Operation& op = call.op();
  if (arguments.sides[send_side].in_place && op.send_many && op.recv_many) return false;
  std::vector<Block> lists[2];
  arguments.blocks(&lists[send_side], &lists[recv_side]);
  for (const auto& blocks : lists)
    for (const Block& block : blocks)
      if (room_of(block).layout) return false;
  return true;
}

// -- carrying out

// True if MPI has exchanged messages before an error, and not refused the arguments.
bool has_begun(int code) {
  int found = code;
  error_class.call(code, &found);
  return found == library().in_status || found == library().err_truncate || found == library().err_other;
}

int begin_and_end(const Call& call, const Arguments& arguments, int poisoned,
                  const std::shared_ptr<CollectiveOperation>& work) {
  Comm& comm = call.comm;
  const bool pairs = call.op().pairs;
  const Word bases[] = {arguments.sides[send_side].buf, arguments.sides[recv_side].buf};
  work->staged = call.staged;
  if (pairs) {
    Call part = call;
    if (call.on_copies()) {
      work->staged = std::make_shared<Staged>(call, arguments, work->entry->out, work->entry->into);
      work->staged->take(call.marks);
      part.words = work->staged->words();
    }
    work->masked = std::make_shared<Masked>(part, work->entry->out, work->entry->into);
    Word* words = work->masked->words();
    if (call.form == nonblocking) {
      words[call.n_words - 1] = reinterpret_cast<Word>(&work->plain);
      work->plains.push_back(&work->plain);
    }
    if (int error = plain(call, words)) {
      if (has_begun(error)) {
        comm.fail("MPI's part of " + std::string(call.op().name) + " has ended with an error");
        comm.refuse();
      }
      return error;
    }
  }
  const bool alone = pairs && call.form == blocking;
  const int first = alone ? comm.tags.pairwise() : comm.tags.next(call.form == blocking ? nullptr : work);
  const CollectiveOperation::Lane lane = {comm.frames->handle(), first, comm.tags.n(), comm.tags.refusal(),
                                          0};
  if (int error = work->begin(bases, call.gpus, lane, call.marks)) return failed(call, error);
  if (poisoned) work->poison(poisoned);
  if (call.form == blocking) return failed(call, work->wait());
  return failed(call, work->submit(call.request));
}

int carry_out(const Call& call, std::shared_ptr<const Entry> entry, const Arguments& arguments,
              int poisoned) {
  auto work = std::make_shared<CollectiveOperation>(call.comm.shared_from_this(), std::move(entry), call.name,
                                                    call.form);
  work->began = engine::now();
  work->check = call.check;
  return work->beginning([&] { return begin_and_end(call, arguments, poisoned, work); });
}

// Whether MPI carries a call out although it is large; true where it does, or there is an error.
bool is_mpis(const Call& call, bool* handled, int* error) {
  const Operation& op = call.op();
  const Library& mpi = library();
  Comm& comm = call.comm;
  *handled = false;
  if (op.reduction >= 0 && mpi.handle_of(call.words[op.reduction]) != mpi.sum) {
    *handled = !decline(call, "only MPI.SUM is accelerated", error);
    return true;
  }
  if (call.form != blocking && !comm.settings.threads) {
    note_plain(call, because("MPI.THREAD_MULTIPLE, or a thread, is missing on some ranks"));
    return true;
  }
  if (call.form != blocking && comm.settings.names) {
    note_plain(call, because("rules that look at a communicator's name apply to blocking calls"));
    return true;
  }
  // A rank whose counts are all zero takes no part in Open MPI's own call, after which later ones meet those
  // of before.
  const bool loses_count = op.pairs && op.root < 0 && mpi.abi == Abi::open_mpi && call.form != blocking;
  if (loses_count && call.words[op.send.buf] == mpi.in_place) {
    *handled = !decline(
        call, "Open MPI mixes up such calls in place where a rank is left with nothing to exchange", error);
    return true;
  }
  if (op.root >= 0 && (call.root() < 0 || call.root() >= comm.size)) return true;  // as MPI will say
  return false;
}

// What is wrong with a call, as far as MPI might not say it; an error code.
int problem_of(const Arguments& arguments) {
  const Library& mpi = library();
  if (arguments.is_aliased())
    return code_of(mpi.err_buffer, "send and receive buffer are the same memory: give MPI.IN_PLACE");
  if (arguments.differs())
    return code_of(mpi.err_count, "this rank sends another number of bytes to itself than it expects");
  return 0;
}

// Has MPI carry out a call of pairs, and takes its tags as the ranks do that do not leave it to MPI: where MPI
// refuses the arguments, as they do where it refuses theirs. MPI's code.
int leave_to_mpi(const Call& call) {
  if (!call.next.exists() && !call.on_devices() && !call.staged) return unavailable;
  if (const int error = mpi_carries_out(call)) return error;
  if (call.form == nonblocking) call.comm.tags.next(nullptr);
  if (call.form == persistent) call.comm.kept_tags.take(call.comm.handle);
  return 0;
}

// Serves a call that is not small.
bool serve_large(const Call& call, uint64_t nbytes, int* error) {
  const Operation& op = call.op();
  Comm& comm = call.comm;
  bool handled;
  if (is_mpis(call, &handled, error)) return handled;
  Description about(call, nbytes);
  if (comm.settings.names && (*error = agree_on_name(comm, &about.comm_name))) return true;
  Arguments arguments(call);
  if (!arguments.sound) return false;
  if (call.on_devices() && !fits_devices(call, arguments)) {
    Call host = call;
    host.staged = std::make_shared<Staged>(call, arguments, std::vector<uint8_t>(), std::vector<uint8_t>());
    host.words = host.staged->words();
    host.gpus[send_side] = host.gpus[recv_side] = engine::NO_GPU;
    if (call.form != persistent) host.staged->take(call.marks);
    return serve_large(host, nbytes, error);
  }
  if ((*error = failed(call, problem_of(arguments)))) return true;
  if (!op.pairs) {
    const Type& type = arguments.decisive();
    about.element = type.element;
    if (!type.element || !type.known || (op.reduction >= 0 && !type.summable)) {
      return !decline(call, unknown_type, error);
    }
  }
  const bool read_only = root_is_read_only;
  std::vector<int64_t> key = arguments.key();
  for (char letter : about.comm_name) key.push_back(letter);
  if (phase) key.push_back(phase);
  about.phase = phase;
  std::shared_ptr<Entry> entry = comm.find(key);
  if (entry && entry->count && !entry->count->take()) entry = nullptr;
  if (!entry) {
    entry = prepare(call, arguments, &about);
    if (!entry) return false;
    if (about.code == library().err_no_mem) throw std::bad_alloc();  // on this rank alone
    if ((*error = failed(call, about.code))) return true;
    if (entry->count) entry->count->take();
    comm.keep(std::move(key), entry);
  }
  if (entry->declined && entry->parts.empty()) {
    if (entry->refused && !decline(call, entry->declined->reason.c_str(), error)) return true;
    note_plain(call, entry->declined);
    if (op.pairs && call.form != blocking) {
      *error = leave_to_mpi(call);
      return true;
    }
    if (!entry->count) return false;
    const double start = engine::now();
    *error = mpi_carries_out(call);
    if (call.staged && call.form == blocking && !*error) {
      call.staged->give_back();
      *error = failed(call, call.staged->code());
    }
    entry->count->add(engine::now() - start);
    return true;
  }
  const Way& way = *entry->parts.back().way;
  int poisoned = 0;
  if (read_only && way.writes_back) {
    poisoned = code_of(
        library().err_buffer,
        "the root's buffer is read-only, and the root too takes the values that a lossy codec leaves: "
        "owner_exact=True lets it keep its own");
  }
  *error = call.form == persistent ? failed(call, keep_call(call, entry, arguments, poisoned))
                                   : carry_out(call, entry, arguments, poisoned);
  return true;
}

// Compares a call with those of the other ranks, a nonblocking one beside it; MPI's code.
int compare(Call* call) {
  std::shared_ptr<Check> made;
  int error = check(*call, &made);
  if (!error && call->form != nonblocking) error = made->wait();
  if (call->form == nonblocking) call->check = made;
  return failed(*call, error);
}

// Whether all ranks take part in what a call does beside MPI, however small it is on this one.
bool is_everybodys(const Call& call) {
  return call.op().pairs && (call.form != blocking || call.comm.settings.names);
}

// Serves a call that is small here.
bool serve_small(const Call& call, int* error) {
  Comm& comm = call.comm;
  bool handled;
  std::string name;
  if (!is_everybodys(call) || is_mpis(call, &handled, error)) return false;
  if (call.form == blocking) return (*error = agree_on_name(comm, &name)) != 0;
  *error = leave_to_mpi(call);
  return true;
}

}  // namespace

std::vector<uint64_t> shape_of(const Block& block) {
  std::vector<uint64_t> shape;
  if (!block.type || block.type->basic || !block.type->shaped) return shape;
  if (block.entries != 1) shape.push_back(uint64_t(block.entries));
  shape.insert(shape.end(), block.type->shape.begin(), block.type->shape.end());
  if (shape.size() < 2) shape.clear();
  return shape;
}

Word own_sum(const Call& call) {
  const Operation& op = call.op();
  if (op.reduction < 0 || library().handle_of(call.words[op.reduction]) != library().sum) return 0;
  const Type* type = type_of(call.words[op.recv.type]);
  return type ? type->own_sum : 0;
}

int plain(const Call& call, const Word* words) {
  const Word sum = own_sum(call);
  if (!sum) return call.next.call(words, call.n_words);
  std::vector<Word> own(words, words + call.n_words);
  own[size_t(call.op().reduction)] = sum;
  return call.next.call(own.data(), call.n_words);
}

bool serve(Call& call, int* error) {
  Comm& comm = call.comm;
  if (reentrant) return false;
  if (call.form != persistent) comm.count(call.name);
  if (comm.broken()) {
    *error = failed(call, code_of(BROKEN, comm.why_broken()));
    return true;
  }
  if (checks && comm.size > 1) {
    if ((*error = compare(&call))) return true;
  }
  if (call.name >= n_accelerated) {
    if ((*error = failed(call, find_devices(&call)))) return true;
    if (!call.on_devices() && !call.check) return false;
    *error = mpi_carries_out(call);
    return true;
  }
  const uint64_t nbytes = message_nbytes(call), limit = comm.limit.load(std::memory_order_relaxed);
  const bool leaves_all = comm.size == 1 || comm.settings.min_nbytes == never;  // as all ranks know
  if (nbytes < limit && (leaves_all || !is_everybodys(call))) {
    comm.last.note_small(call.name);
    return false;
  }
  if ((*error = failed(call, find_devices(&call)))) return true;
  bool served = false;
  if (leaves_all) {
    comm.last.note_small(call.name);
  } else if (nbytes && nbytes >= comm.settings.min_nbytes) {
    served = serve_large(call, nbytes, error);
  } else {
    comm.last.note_small(call.name);
    served = serve_small(call, error);
  }
  if (served || (!call.on_devices() && !call.check)) return served;
  *error = mpi_carries_out(call);
  return true;
}

void Description::add(Part part, const std::vector<uint8_t>& some_sent,
                      const std::vector<uint8_t>& some_received) {
  auto take = [&](const std::vector<Block>& blocks, const std::vector<uint8_t>& some, bool copied) {
    for (size_t i = 0; i < blocks.size(); i++) {
      Room room = some.empty() || some[i] ? room_of(blocks[i]) : Room();
      room.copied = copied;
      part.rooms.push_back(std::move(room));
    }
  };
  const bool copies = in_place && call.op().send_many && call.op().recv_many && call.op().reduction < 0;
  take(sent, some_sent, copies);
  take(received, some_received, false);
  entry->parts.push_back(std::move(part));
}

void set_root_is_read_only(bool is_read_only) { root_is_read_only = is_read_only; }

void set_phase(int number) { phase = number; }

}  // namespace layer
}  // namespace compcoll
