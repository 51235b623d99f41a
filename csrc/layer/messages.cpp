#include "messages.h"

#include <cstring>
#include <string>

#include "errors.h"
#include "functions.h"
#include "requests.h"

namespace compcoll {
namespace layer {
namespace {

const Messenger* messenger = nullptr;

constexpr size_t most_nbytes_of_status = 64;
// Lengths of what may be the first of a compressed message; as compcoll/mpi/p2p/protocol.py has them.
constexpr int least = 1024, unit = 128, rest = 77;

Own get_count("PMPI_Get_count"), message_c2f("PMPI_Message_c2f"), message_f2c("PMPI_Message_f2c");

// Where results go.
struct Places { void *request = nullptr, *flag = nullptr, *message = nullptr; };

void* status_at(Convention convention, Word word) {
  bool ignored = convention == Convention::fortran
                     ? is_status_ignore_of_fortran(reinterpret_cast<void*>(word))
                     : word == library().ignored_status;
  return ignored ? nullptr : reinterpret_cast<void*>(word);
}

// Also gives the communicator's handle; that of MPI_COMM_NULL where there is no such argument.
Message message_of(MessageName name, Convention convention, const Word* words, Places* places, Word* comm) {
  const Library& mpi = library();
  bool fortran = convention == Convention::fortran;
  Message message = {};
  message.name = name;
  *comm = mpi.comm_null;
  for (int i = 0; messages[name].kinds[i]; i++) {
    Word word = words[i];
    void* place = reinterpret_cast<void*>(word);
    auto number = [&] { return fortran ? *static_cast<int*>(place) : int32_t(word); };
    auto buffer = [&] { return fortran ? buffer_of_fortran(place) : word; };
    auto count = [&] { return convention == Convention::large ? int64_t(word) : number(); };
    auto type = [&] { return fortran ? type_of_fortran(place) : mpi.handle_of(word); };
    switch (messages[name].kinds[i]) {
      case 'b': message.sendbuf = buffer(); break;
      case 'n': message.sendcount = count(); break;
      case 't': message.sendtype = type(); break;
      case 'd': message.dest = number(); break;
      case 'g': message.sendtag = number(); break;
      case 'B': message.recvbuf = buffer(); break;
      case 'N': message.recvcount = count(); break;
      case 'T': message.recvtype = type(); break;
      case 'S': message.source = number(); break;
      case 'G': message.recvtag = number(); break;
      case 'c': *comm = fortran ? comm_of_fortran(place) : mpi.handle_of(word); break;
      case 's': message.status = status_at(convention, word); break;
      case 'q': places->request = place; break;
      case 'f': places->flag = place; break;
      case 'm': places->message = place; break;
    }
  }
  message.handle = *comm;
  return message;
}

// A persistent call of Python's.
class KeptMessage : public Prepared {
 public:
  explicit KeptMessage(void* object) : object_(object) {}
  ~KeptMessage() override { messenger->free(object_, started != 0); }
  int start(Word* request) override {
    int error;
    {
      Inside within;
      error = messenger->start(object_, request);
    }
    return error ? raise(library().comm_world, error) : 0;
  }

 private:
  void* const object_;
};

// Has Python carry a message out; false where MPI is to do so.
bool transfer(Message* message, Convention convention, const Places& places, int* error) {
  const Word comm = message->comm ? message->handle : library().comm_world;
  {
    Inside within;
    *error = messenger->transfer(message);
  }
  if (*error == declined) return false;
  if (*error) return raise(comm, *error), true;
  if (message->prepared) {
    Word handle = 0;
    if ((*error = keep(std::make_shared<KeptMessage>(message->prepared), &handle))) return true;
    message->request = handle;
  }
  if (places.request) give_request(convention, message->request, places.request);
  if (places.flag) *static_cast<int*>(places.flag) = message->flag;
  if (places.message) give_handle(convention, message->message, message_c2f, places.message);
  return true;
}

bool may_take(Convention convention) {
  return messenger && is_ours() && (convention != Convention::fortran || library().own_fortran());
}

// Bytes of what is sent, by the letters of its count and type, or of what is received.
uint64_t bytes(int64_t count, Word type) { return count > 0 ? uint64_t(count) * nbytes_of(type) : 0; }

template <int name>
uint64_t message_bytes(Convention convention, const Word* words, bool sent) {
  constexpr std::string_view kinds = messages[name].kinds;
  constexpr size_t n = kinds.find('n'), t = kinds.find('t'), m = kinds.find('N'), u = kinds.find('T');
  size_t count = sent ? n : m, type = sent ? t : u;
  if (count == kinds.npos) return 0;
  if (convention == Convention::fortran) {
    auto at = [&](size_t i) { return reinterpret_cast<const int*>(words[i]); };
    return bytes(*at(count), type_of_fortran(at(type)));
  }
  return bytes(convention == Convention::large ? int64_t(words[count]) : int32_t(words[count]), words[type]);
}

template <int name>
bool taken(Convention convention, const Word* words, int* error) {
  if (!may_take(convention)) return false;
  uint64_t sent = message_bytes<name>(convention, words, true),
           received = message_bytes<name>(convention, words, false);
  Places places;
  Word handle;
  Message message = message_of(MessageName(name), convention, words, &places, &handle);
  const Comm* comm = find(handle);
  if (!comm || (sent > received ? sent : received) < comm->settings.min_nbytes) return false;
  message.comm = comm->number();
  return transfer(&message, convention, places, error);
}

// -- what a matched probe has received already, behind messages of MPI's that stand for them

// Whether there are any; one thread may look while another one receives the last one.
int n_matched = 0;

template <int name>
bool taken_matched(Convention convention, const Word* words, int* error) {
  if (!may_take(convention) || !__atomic_load_n(&n_matched, __ATOMIC_ACQUIRE)) return false;
  Places places;
  Word handle;
  Message message = message_of(MessageName(name), convention, words, &places, &handle);
  message.message = handle_at(convention, message_f2c, places.message);
  if (!transfer(&message, convention, places, error)) return false;
  __atomic_fetch_sub(&n_matched, 1, __ATOMIC_RELEASE);
  return true;
}

bool looks_compressed(const void* status) {
  int n = 0;
  return !get_count.call(status, library().byte, &n) && n >= least && n % unit == rest;
}

// A probe, which MPI answers by `next` where what it finds is not compressed. `words` may be changed.
template <class Call>
int probe(MessageName name, Convention convention, Word* words, Call&& next) {
  Word handle;
  Places places;
  if (!may_take(convention)) return next();
  Message message = message_of(MessageName(name), convention, words, &places, &handle);
  const Comm* comm = find(handle);
  if (!comm || comm->settings.min_nbytes == never || comm->size == 1) return next();
  message.comm = comm->number();
  alignas(8) char scratch[most_nbytes_of_status];
  bool ignored = !message.status;
  if (ignored) {
    message.status = scratch;
    words[strlen(messages[name].kinds) - 1] = reinterpret_cast<Word>(scratch);
  }
  int error = next();
  if (error || (places.flag && !*static_cast<int*>(places.flag)) || !looks_compressed(message.status))
    return error;
  if (places.message) message.message = handle_at(convention, message_f2c, places.message);
  if (!transfer(&message, convention, places, &error)) return 0;
  if (places.message && !error) __atomic_fetch_add(&n_matched, 1, __ATOMIC_RELEASE);
  return error;
}

}  // namespace

bool is_message(std::string_view name) {
  for (const MessageKinds& one : messages)
    if (name == std::string("MPI_") + one.name || name == std::string("MPI_") + one.name + "_c") return true;
  return false;
}

void take_messages(const Messenger& functions) {
  static Messenger kept;
  kept = functions;
  messenger = &kept;
}

}  // namespace layer
}  // namespace compcoll

using namespace compcoll::layer;

// A function of C, which MPI may lack.
#define C_MESSAGE_BY(n, symbol, convention, name, take)                 \
  C_FUNCTION(symbol, (C_##n)) {                                         \
    static_assert(std::string_view(messages[name].kinds).size() == n);  \
    const Word words[] = {A_##n};                                       \
    int error;                                                          \
    if (take<name>(convention, words, &error)) return error;            \
    return next_##symbol.exists() ? next_##symbol(A_##n) : unavailable; \
  }
#define C_MESSAGE(n, name, kinds, take)            \
  C_MESSAGE_BY(n, name, Convention::c, name, take) \
  C_MESSAGE_BY(n, name##_c, Convention::large, name, take)
#define FORTRAN_MESSAGE(n, name, symbol, take)              \
  FORTRAN_FUNCTION(symbol, (C_##n, int* error)) {           \
    const Word words[] = {A_##n};                           \
    int result;                                             \
    if (!take<name>(Convention::fortran, words, &result)) { \
      next_##symbol(A_##n, error);                          \
      return;                                               \
    }                                                       \
    if (error) *error = result;                             \
  }
#define MESSAGE_BY(take, n, name, fortran, kinds)  \
  C_MESSAGE(n, name, kinds, take)                  \
  FORTRAN_MESSAGE(n, name, mpi_##fortran##_, take) \
  FORTRAN_MESSAGE(n, name, mpi_##fortran##_f08_, take)
#define MESSAGE(...) MESSAGE_BY(taken, __VA_ARGS__)
#define MATCHED(...) MESSAGE_BY(taken_matched, __VA_ARGS__)

// The arguments of a function, of which a probe may have changed one.
#define W_4 w[0], w[1], w[2], w[3]
#define W_5 W_4, w[4]
#define W_6 W_5, w[5]

#define C_PROBE(n, name)                                                      \
  C_FUNCTION(name, (C_##n)) {                                                 \
    Word w[] = {A_##n};                                                       \
    return probe(name, Convention::c, w, [&] { return next_##name(W_##n); }); \
  }

#define FORTRAN_PROBE(n, name, symbol)                     \
  FORTRAN_FUNCTION(symbol, (C_##n, int* error)) {          \
    Word w[] = {A_##n};                                    \
    int result = probe(name, Convention::fortran, w, [&] { \
      int found = 0;                                       \
      next_##symbol(W_##n, &found);                        \
      return found;                                        \
    });                                                    \
    if (error) *error = result;                            \
  }

#define PROBE(n, name, fortran, kinds)     \
  C_PROBE(n, name)                         \
  FORTRAN_PROBE(n, name, mpi_##fortran##_) \
  FORTRAN_PROBE(n, name, mpi_##fortran##_f08_)

MESSAGES(MESSAGE, MATCHED, PROBE)
