// MPI's functions for messages, as programs call them.
#include <algorithm>
#include <string_view>

#include "engine/clock.h"
#include "entry.h"
#include "errors.h"
#include "hook.h"
#include "messages.h"
#include "recorder.h"
#include "requests.h"

namespace compcoll {
namespace layer {

namespace {

constexpr Form form_of(std::string_view name) {
  return name.size() > 5 && name.substr(name.size() - 5) == "_init" ? persistent
         : name[0] == 'I'                                           ? nonblocking
                                                                    : blocking;
}

}  // namespace

#define COMPCOLL_ROW(n, name, op, kinds) {#name, kinds, op, form_of(#name)},
constexpr MessageRow all_rows[] = {MESSAGES(COMPCOLL_ROW, COMPCOLL_ROW, COMPCOLL_ROW)};
const MessageRow* const rows = all_rows;

namespace {

Record begin_message_record(const MessageArguments& m) {
  Record record = {};
  record.name = m.name, record.form = blocking;
  record.comm = m.comm->number(), record.size = m.comm->size;
  record.nbytes = m.sends ? m.sent() : m.room(), record.sends = m.sends && m.comm->size > 1;
  if (recorder.has_sites()) {
    record.site =
        recorder.site(caller_beyond_fortran(m.caller), record.comm, name_of(m.comm->handle).c_str());
    if (const Type* type = record.nbytes ? type_of(m.sends ? m.sendtype : m.recvtype) : nullptr)
      record.element = type->element;
  }
  record.start = engine::now();
  return record;
}

void end_message_record(const MessageArguments& m, Record record, int error, Word request) {
  record.returned = record.end = engine::now(), record.error = error;
  int small = LastCall::none;
  if (!pending_of(request)) record.outcome = m.comm->last.get(&small);
  record.small = small >= 0;
  if (m.row().form == nonblocking && !error && request && request != library().request_null)
    attach_record(request, std::move(record));
  else recorder.add(std::move(record));
}

// True if a message is so small that MPI carries it.
template <int name>
COMPCOLL_INLINE bool is_small_message(bool large_count, const Word* words, const Comm& comm) {
  constexpr std::string_view kinds = all_rows[name - n_operations].kinds;
  constexpr size_t n = kinds.find('n'), t = kinds.find('t'), m = kinds.find('N'), u = kinds.find('T');
  constexpr bool replaces = kinds.find('d') != kinds.npos && n == kinds.npos;
  const uint64_t limit = comm.limit.load(std::memory_order_relaxed);
  if (limit == never) return true;
  auto nbytes = [&](size_t count, size_t type) {
    const int64_t k = large_count ? int64_t(words[count]) : int32_t(words[count]);
    return k > 0 ? uint64_t(k) * nbytes_of(words[type]) : 0;
  };
  if constexpr (n != kinds.npos)
    if (nbytes(n, t) >= limit) return false;
  if constexpr (m != kinds.npos) {
    const uint64_t room = nbytes(m, u);
    if (room >= std::min(limit, least_first) || (replaces && room >= limit)) return false;
  }
  return true;
}

// The range of memory from the first to the last byte of a receive buffer.
template <int name>
Range range_of(bool large_count, const Word* words) {
  constexpr std::string_view kinds = all_rows[name - n_operations].kinds;
  constexpr size_t buffer = kinds.find('B'), count = kinds.find('N'), type = kinds.find('T');
  if constexpr (buffer == kinds.npos) return {};
  const int64_t n = large_count ? int64_t(words[count]) : int32_t(words[count]);
  return stretch_of(words[buffer], n, words[type]);
}

// Serves a message; false if the caller has to call MPI. A recorded call is always served, by MPI through
// `next` if need be. `words` may change.
template <class Function>
bool enter_message(Name name, bool large_count, Word* words, const void* caller, bool exists, Function&& next,
                   int* error) {
  if (!is_ours()) return false;
  MessageArguments m = message_of(name, large_count, words);
  if (!m.comm) return false;
  m.caller = caller, m.exists = exists;
  bool is_taken = true;
  *error = guarded(m.comm->handle, [&] {
    Word request = 0;
    int code = 0;
    const bool records = m.row().form != persistent && is_recorded();
    Record record = records ? begin_message_record(m) : Record();
    if (serve_message(m, &request, &code)) {
      if (m.request && !code) library().put_handle(request, m.request);
    } else if (!records) {
      is_taken = false;
      return 0;
    } else {
      code = next();
    }
    if (records)
      end_message_record(m, std::move(record), code, m.request ? library().handle_at(m.request) : 0);
    return code;
  });
  return is_taken;
}

// Lets MPI carry out a call whose receive may truncate a compressed message; `words` may change.
template <int name, class Function>
int receive_by_mpi(bool large_count, Word* words, Comm& comm, Function&& next) {
  constexpr std::string_view kinds = all_rows[name - n_operations].kinds;
  constexpr size_t at = kinds.find('s'), request = kinds.find('q');
  if (kinds.find('S') == kinds.npos || !comm.compresses() || !is_ours()) return next();
  if constexpr (request != kinds.npos) {
    comm.receives_by_mpi.store(true, std::memory_order_relaxed);
    const int error = next();
    if (!error)
      remember_receive_by_mpi(library().handle_at(reinterpret_cast<void*>(words[request])),
                              range_of<name>(large_count, words));
    return error;
  }
  alignas(8) char status[most_nbytes_of_status];
  if (words[at] == library().ignored_status) words[at] = reinterpret_cast<Word>(status);
  const int error = next();
  if (error) fail_if_truncated(error, reinterpret_cast<void*>(words[at]), &comm);
  return error;
}

template <int name, class Function>
COMPCOLL_INLINE int message(bool large_count, Word* words, const void* caller, bool exists, Function&& next) {
  constexpr std::string_view kinds = all_rows[name - n_operations].kinds;
  constexpr size_t where = kinds.find('c');
  int error = 0;
  Comm* comm = look_up(words[where]);
  if (!comm) return next();
  auto plain = [&] { return receive_by_mpi<name>(large_count, words, *comm, next); };
  const bool shares =
      n_in_place.load(std::memory_order_relaxed) && is_guarded(range_of<name>(large_count, words));
  if (!exists || shares || !is_small_message<name>(large_count, words, *comm)) {
    if (enter_message(Name(name), large_count, words, caller, exists, plain, &error)) return error;
  } else if (!reentrant && form_of(all_rows[name - n_operations].name) != persistent) {
    constexpr Name op = all_rows[name - n_operations].op;
    comm->count(op);
    comm->last.note_small(op);
  }
  return plain();
}

template <int name, class Function>
int matched_message(bool large_count, Word* words, const void*, bool, Function&& next) {
  if (!is_ours()) return next();
  return guarded(library().comm_world,
                 [&] { return receive_matched(message_of(Name(name), large_count, words), next); });
}

template <int name, class Function>
int probe(bool large_count, Word* words, const void*, bool, Function&& next) {
  constexpr std::string_view kinds = all_rows[name - n_operations].kinds;
  if (!is_ours() || !look_up(words[kinds.find('c')])) return next();
  return guarded(library().comm_world, [&] {
    return look_for_message(message_of(Name(name), large_count, words), words + kinds.size() - 1, next);
  });
}

}  // namespace

}  // namespace layer
}  // namespace compcoll

using namespace compcoll::layer;

// The arguments of a function, in which a status may have replaced an ignored one.
#define W_4 w[0], w[1], w[2], w[3]
#define W_5 W_4, w[4]
#define W_6 W_5, w[5]
#define W_7 W_6, w[6]
#define W_9 W_7, w[7], w[8]
#define W_12 W_9, w[9], w[10], w[11]

// Defines a function, which MPI may lack.
#define C_MESSAGE(n, symbol, large_count, name, take)                                               \
  C_FUNCTION(symbol, (C_##n)) {                                                                     \
    static_assert(std::string_view(all_rows[name - n_operations].kinds).size() == n);               \
    Word w[] = {A_##n};                                                                             \
    return take<name>(large_count, w, CALLER, next_##symbol.exists(),                               \
                      [&] { return next_##symbol.exists() ? next_##symbol(W_##n) : unavailable; }); \
  }
#define MESSAGE_BY(take, n, name, ...)  \
  C_MESSAGE(n, name, false, name, take) \
  C_MESSAGE(n, name##_c, true, name, take)
#define MESSAGE(...) MESSAGE_BY(message, __VA_ARGS__)
#define MATCHED(...) MESSAGE_BY(matched_message, __VA_ARGS__)
#define PROBE(n, name, ...) C_MESSAGE(n, name, false, name, probe)

MESSAGES(MESSAGE, MATCHED, PROBE)
