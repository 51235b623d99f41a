// Sends, receives and probes. What is small goes to MPI; so do all messages of communicators whose ranks have
// used them before they were attached, since a receive may have been posted that does not know of compression.
#include <cstring>

#include "names.h"
#include "requests.h"

namespace compcoll {
namespace preload {
namespace {

constexpr size_t most_nbytes_of_status = 64;
// Lengths of what may be the first of a compressed message; as compcoll/mpi/p2p/protocol.py has them.
constexpr int least = 1024, unit = 128, rest = 77;

Own get_count("PMPI_Get_count"), message_c2f("PMPI_Message_c2f"), message_f2c("PMPI_Message_f2c");

// Where results go.
struct Places { void *request = nullptr, *flag = nullptr, *message = nullptr; };

void* status_at(Convention convention, Word word) {
  bool ignored = convention == Convention::fortran
                     ? is_status_ignore_of_fortran(reinterpret_cast<void*>(word))
                     : word == library().status_ignore;
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
  return message;
}

// Has Python carry a message out; false where MPI is to do so.
bool transfer(Message* message, Convention convention, const Places& places, int* error) {
  Inside within;
  *error = dispatch_if_loaded()->transfer(message);
  if (*error == declined) return false;
  if (*error) return true;
  if (message->name >= Send_init) message->request = keep(message->prepared, message->request);
  if (places.request) give_request(convention, message->request, places.request);
  if (places.flag) *static_cast<int*>(places.flag) = message->flag;
  if (places.message) give_handle(convention, message->message, message_c2f, places.message);
  return true;
}

bool may_take(Convention convention) {
  return is_ours() && (convention != Convention::fortran || library().own_fortran()) && dispatch_if_loaded();
}

// Whether messages of a communicator may be compressed.
const Comm* compressing(Word handle) {
  const Comm* comm = find(handle);
  return comm && comm->messages ? comm : nullptr;
}

// Bytes of what is sent, by the letters of its count and type, or of what is received.
template <int name>
uint64_t nbytes_of(Convention convention, const Word* words, bool sent) {
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
bool taken(Convention convention, const Word* words, const void* caller, int* error) {
  if (!may_take(convention)) return false;
  uint64_t sent = nbytes_of<name>(convention, words, true),
           received = nbytes_of<name>(convention, words, false);
  uint64_t most = sent > received ? sent : received;
  if (most < dispatch_if_loaded()->min_nbytes) return false;
  Places places;
  Word handle;
  Message message = message_of(MessageName(name), convention, words, &places, &handle);
  message.comm = compressing(handle);
  if (!message.comm || most < message.comm->min_nbytes) return false;
  message.caller = caller;
  return transfer(&message, convention, places, error);
}

// -- what a matched probe has received already, behind messages of MPI's that stand for them

// Whether there are any; one thread may look while another one receives the last one.
int n_matched = 0;

template <int name>
bool taken_matched(Convention convention, const Word* words, const void* caller, int* error) {
  if (!may_take(convention) || !__atomic_load_n(&n_matched, __ATOMIC_ACQUIRE)) return false;
  Places places;
  Word handle;
  Message message = message_of(MessageName(name), convention, words, &places, &handle);
  message.message = handle_at(convention, message_f2c, places.message);
  message.caller = caller;
  if (!transfer(&message, convention, places, error)) return false;
  __atomic_fetch_sub(&n_matched, 1, __ATOMIC_RELEASE);
  return true;
}

bool looks_compressed(const void* status) {
  int n = 0;
  return !get_count.call(status, dispatch_if_loaded()->byte, &n) && n >= least && n % unit == rest;
}

// A probe, which MPI answers by `next` where what it finds is not compressed. `words` may be changed.
template <class Call>
int probe(MessageName name, Convention convention, Word* words, const void* caller, Call&& next) {
  Word handle;
  Places places;
  if (!may_take(convention)) return next();
  Message message = message_of(MessageName(name), convention, words, &places, &handle);
  message.comm = compressing(handle);
  if (!message.comm) return next();
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
  message.caller = caller;
  if (!transfer(&message, convention, places, &error)) return 0;
  if (places.message && !error) __atomic_fetch_add(&n_matched, 1, __ATOMIC_RELEASE);
  return error;
}

}  // namespace
}  // namespace preload
}  // namespace compcoll

using namespace compcoll::preload;

#define C_MESSAGE(n, name, kinds, take)                              \
  C_FUNCTION(n, MPI_##name, MPI_##name, kinds, (C_##n), (A_##n),     \
             take<name>(Convention::c, words, CALLER, &error))       \
  C_FUNCTION(n, MPI_##name##_c, MPI_##name, kinds, (C_##n), (A_##n), \
             take<name>(Convention::large, words, CALLER, &error))
#define FORTRAN_MESSAGE(n, name, symbol, take)                     \
  FORTRAN_FUNCTION(n, symbol, (C_##n, int* error), (A_##n, error), \
                   take<name>(Convention::fortran, words, CALLER, &result))
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

#define C_PROBE(n, name)                                                       \
  EXPORT int MPI_##name(C_##n) {                                               \
    static Next next("MPI_" #name);                                            \
    Word w[] = {A_##n};                                                        \
    return probe(name, Convention::c, w, CALLER, [&] { return next(W_##n); }); \
  }

#define FORTRAN_PROBE(n, name, symbol)                             \
  EXPORT void symbol(C_##n, int* error) {                          \
    static Next next(#symbol);                                     \
    Word w[] = {A_##n};                                            \
    int result = probe(name, Convention::fortran, w, CALLER, [&] { \
      int found = 0;                                               \
      next(W_##n, &found);                                         \
      return found;                                                \
    });                                                            \
    if (error) *error = result;                                    \
  }

#define PROBE(n, name, fortran, kinds)     \
  C_PROBE(n, name)                         \
  FORTRAN_PROBE(n, name, mpi_##fortran##_) \
  FORTRAN_PROBE(n, name, mpi_##fortran##_f08_)

MESSAGES(MESSAGE, MATCHED, PROBE)
