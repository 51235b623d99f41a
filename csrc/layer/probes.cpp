// Probes, and receives of matched messages.
//
// A matched probe receives the message at once to learn its size. The program gets a stand-in: the handle of
// an empty message that this rank has sent to itself.
#include <sched.h>

#include <unordered_map>

#include "errors.h"
#include "messages.h"
#include "requests.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction isend("PMPI_Isend"), improbe("PMPI_Improbe"), mrecv("PMPI_Mrecv"), mrecv_c("PMPI_Mrecv_c"),
    request_free("PMPI_Request_free");

constexpr int tag_of_stand_ins = 1;

struct Matched {
  std::shared_ptr<Comm> comm;
  std::shared_ptr<ReceivedMessage> arrived;
};
std::atomic<int> n_matched{0};
std::mutex mutex;
auto& all = *new std::unordered_map<Word, Matched>;  // by the handles of their stand-ins

// Makes the stand-in of a message that has arrived; its handle.
Word stand_in_for(std::shared_ptr<Comm> comm, std::shared_ptr<ReceivedMessage> arrived) {
  const Library& mpi = library();
  Word request = 0, message = 0;
  static char nothing;
  if (isend.call(&nothing, 0, mpi.byte, 0, tag_of_stand_ins, self_comm(), &request)) return mpi.message_null;
  request_free.call(&request);
  for (int found = 0; !found;)
    if (improbe.call(0, tag_of_stand_ins, self_comm(), &found, &message, mpi.ignored_status))
      return mpi.message_null;
  message = mpi.handle_of(message);
  std::lock_guard<std::mutex> lock(mutex);
  all[message] = {std::move(comm), std::move(arrived)};
  n_matched++;
  return message;
}

// Takes the message of a stand-in; false if the handle is no stand-in's.
bool take_matched(Word handle, Matched* matched) {
  if (!n_matched) return false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = all.find(handle);
    if (found == all.end()) return false;
    *matched = std::move(found->second);
    all.erase(found);
    n_matched--;
  }
  Word place;
  static char nothing;
  library().put_handle(handle, &place);
  mrecv.call(&nothing, 0, library().byte, &place, library().ignored_status);
  return true;
}

// Receives a message that a matched probe has found; MPI's code.
int take_found(const MessageArguments& m, void* status) {
  const int64_t length = nbytes_of_message(status);
  auto arrived = std::make_shared<ReceivedMessage>();
  arrived->bytes.resize(size_t(length));
  Word place;
  library().put_handle(library().handle_at(m.message), &place);
  MpiFunction& receive = mrecv.of(length, mrecv_c);
  if (int error = receive.call(arrived->bytes.data(), Word(length), library().byte, &place, arrived->status))
    return error;
  Opening opening;
  if (unpack_first(arrived->bytes.data(), uint64_t(length), &opening)) {
    m.comm->notices->drop(source_of(status), tag_of(status), length, opening.serial);
    copy_status(arrived->status, status);
    set_nbytes_of_message(status, int64_t(opening.n * opening.itemsize));
  }
  library().put_handle(stand_in_for(m.comm->shared_from_this(), arrived), m.message);
  return 0;
}

}  // namespace

int receive_matched(MessageArguments m, const std::function<int()>& next) {
  Matched found;
  const Word handle = library().handle_at(m.message);
  auto buffer = std::make_shared<MessageBuffer>(m.recvbuf, m.recvcount, m.recvtype, false);
  if (!buffer->is_run()) buffer->use_host_copy();
  if (!buffer->sound() || m.recvcount < 0 || !take_matched(handle, &found)) return next();
  m.comm = found.comm.get();
  m.comm->count(m.row().op);
  if (buffer->on_device() && m.comm->compresses()) m.comm->load_kernels(buffer->gpu, buffer->element);
  auto operation = std::make_shared<MessageOperation>(found.comm, m.name, m.row().form);
  operation->begin_receive(buffer, m.source, m.recvtag, found.arrived);
  library().put_handle(library().message_null, m.message);
  Word request = 0;
  const int error = submit_or_wait(m, *operation, &request);
  if (m.request && !error) library().put_handle(request, m.request);
  return error;
}

int look_for_message(const MessageArguments& m, Word* word, const std::function<int()>& next) {
  // If MPI does not take GPU memory, every matched message is received here: its buffer may be on a GPU.
  const bool keeps = m.message && engine::driver() && !m.comm->settings.devices;
  if (!keeps && !m.comm->compresses()) return next();
  if (m.comm->broken()) return failed(m, code_of(BROKEN, m.comm->why_broken()));
  alignas(8) char scratch[most_nbytes_of_status];
  if (!m.status) *word = reinterpret_cast<Word>(scratch);
  void* const status = reinterpret_cast<void*>(*word);
  for (;;) {
    // A message of unknown size counts as not arrived.
    if (int error = next()) return error;
    const int64_t length = nbytes_of_message(status);
    if ((m.flag && !*static_cast<int*>(m.flag)) || (!keeps && !looks_compressed(length))) return 0;
    if (source_of(status) == library().proc_null) return 0;
    if (m.message) return take_found(m, status);
    const int64_t nbytes = m.comm->notices->nbytes_of(source_of(status), tag_of(status), length);
    if (nbytes >= 0) {
      if (nbytes != length) set_nbytes_of_message(status, nbytes);
      return 0;
    }
    if (m.flag) {
      *static_cast<int*>(m.flag) = 0;
      return 0;
    }
    ReleaseGil released_gil;
    sched_yield();
  }
}

}  // namespace layer
}  // namespace compcoll
