// What matched probes have received already, to know its size: the program has the handle of another message,
// of no bytes, from this rank to itself.
#include <unordered_map>

#include "messages.h"

namespace compcoll {
namespace layer {
namespace {

Own isend("PMPI_Isend"), improbe("PMPI_Improbe"), mrecv("PMPI_Mrecv"), request_free("PMPI_Request_free");

constexpr int tag = 1;
std::atomic<int> n_matched{0};
std::mutex mutex;
auto& all = *new std::unordered_map<Word, Matched>;

}  // namespace

Word stand_in_for(std::shared_ptr<Comm> comm, std::shared_ptr<Arrived> arrived) {
  const Library& mpi = library();
  Word request = 0, message = 0;
  static char nothing;
  if (isend.call(&nothing, 0, mpi.byte, 0, tag, own_comm(), &request)) return mpi.message_null;
  request_free.call(&request);
  for (int found = 0; !found;)
    if (improbe.call(0, tag, own_comm(), &found, &message, mpi.ignored_status)) return mpi.message_null;
  message = mpi.handle_of(message);
  std::lock_guard<std::mutex> lock(mutex);
  all[message] = {std::move(comm), std::move(arrived)};
  n_matched++;
  return message;
}

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

}  // namespace layer
}  // namespace compcoll
