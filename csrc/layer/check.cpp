#include "check.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "abi.h"
#include "arguments.h"
#include "engine.h"
#include "engine/clock.h"
#include "errors.h"

namespace compcoll {
namespace layer {

std::atomic<bool> checks{false};

namespace {

MpiFunction iallreduce("PMPI_Iallreduce"), test("PMPI_Test"), isend("PMPI_Isend"), recv("PMPI_Recv"),
    iprobe("PMPI_Iprobe"), get_count("PMPI_Get_count");

// Seconds to wait for other ranks, and then for descriptions from ranks that have timed out, too.
double patience = 0;
constexpr double grace = 1;
std::vector<std::pair<Word, std::string>> operation_names;
constexpr const char* types[] = {"",         "int8",    "uint8",   "int16",     "uint16",
                                 "int32",    "uint32",  "int64",   "uint64",    "float16",
                                 "bfloat16", "float32", "float64", "complex64", "complex128"};

uint64_t hash_of(const void* data, size_t n) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < n; i++) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  return hash ^ hash >> 29;
}

uint64_t hash_of(int64_t from, int64_t to, const int64_t* pair) {
  const int64_t all[] = {from, to, pair[0], pair[1]};
  return pair[1] ? hash_of(all, sizeof all) : 0;
}

// Descriptions of the ranks' calls, the most frequent one last.
std::string grouped(const std::vector<std::string>& calls) {
  std::map<std::string, std::vector<int>> groups;
  for (size_t i = 0; i < calls.size(); i++) groups[calls[i]].push_back(int(i));
  std::vector<std::pair<std::string, std::vector<int>>> order(groups.begin(), groups.end());
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : a.second[0] > b.second[0];
  });
  std::string text;
  for (const auto& [call, ranks] : order) {
    const bool rest = &ranks == &order.back().second && ranks.size() > 1;
    text += (text.empty() ? "" : ", ") + (rest ? "the others" : named(ranks)) + " called " + call;
  }
  return text;
}

// Describes the first two ranks whose sent and expected messages differ.
std::string odd_pair(const std::string& call, const std::vector<std::vector<int64_t>>& all) {
  for (size_t from = 0; from < all.size(); from++) {
    for (size_t to = 0; to < all.size(); to++) {
      if (all[from].empty() || all[to].empty()) continue;
      const int64_t *sent = &all[from][2 * to], *expected = &all[to][2 * (all.size() + from)];
      if ((!sent[1] && !expected[1]) || (sent[0] == expected[0] && sent[1] == expected[1])) continue;
      std::string wanted = amount(expected[0], expected[1]);
      if (sent[0] == expected[0]) wanted = wanted.substr(0, wanted.find(' '));
      return call.substr(0, call.find(' ')) + ": rank " + std::to_string(from) + " sends rank " +
             std::to_string(to) + " " + amount(sent[0], sent[1]) + ", which expects " + wanted;
    }
  }
  return call + ": the ranks' arguments differ";
}

}  // namespace

std::string named(const std::vector<int>& ranks) {
  constexpr size_t most = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), most); i++)
    text += (i ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > most ? text + " and " + std::to_string(ranks.size() - most) + " others" : text;
}

std::string amount(int64_t element, int64_t nbytes) {
  if (!element) return std::to_string(nbytes) + " bytes";
  return std::to_string(nbytes / itemsize(uint32_t(element))) + " " + types[element];
}

void begin_checks(double seconds, std::vector<std::pair<Word, std::string>> operations) {
  patience = seconds;
  operation_names = std::move(operations);
  checks = seconds > 0;
  look_at_all();
}

int Check::begin(const std::shared_ptr<Comm>& comm, std::string text, std::vector<int64_t> pairs,
                 std::shared_ptr<Check>* made) {
  auto one = std::make_shared<Check>();
  one->comm_ = comm, one->text_ = std::move(text), one->pairs_ = std::move(pairs),
  one->number_ = ++comm->n_checked;
  // The weights of all ranks sum to zero, and the terms of a message's two ends cancel each other.
  const uint64_t rank = uint64_t(comm->rank), size = uint64_t(comm->size),
                 weight = rank ? 2 * rank + 1 : 1 - size * size;
  one->given_ = hash_of(one->text_.data(), one->text_.size()) * weight;
  for (size_t i = 0; i < one->pairs_.size() / 4; i++) {
    one->given_ += hash_of(comm->rank, int64_t(i), &one->pairs_[2 * i]);
    one->given_ -= hash_of(int64_t(i), comm->rank, &one->pairs_[2 * (size + i)]);
  }
  *made = one;
  const Library& mpi = library();
  return iallreduce.call(&one->given_, &one->sum_, 1, mpi.uint64, mpi.sum, comm->handle, &one->request_);
}

// Sends this rank's call to all other ranks, and receives theirs; returns the ranks that answered in time.
std::vector<int> Check::exchange(double seconds, std::vector<std::string>* texts,
                                 std::vector<std::vector<int64_t>>* pairs) {
  // Never freed, since these sends are not waited for. The communicators are kept as well, so that an
  // unreceived message cannot match a receive on a later communicator.
  static auto& sent = *new std::vector<std::pair<std::string, std::shared_ptr<PrivateComm>>>;
  const Library& mpi = library();
  const int size = comm_->size, tag = comm_->tags.check();
  const Word frames = comm_->frames->handle();
  const uint64_t head[] = {uint64_t(number_), pairs_.size()};
  std::string mine(reinterpret_cast<const char*>(head), sizeof head);
  mine.append(reinterpret_cast<const char*>(pairs_.data()), pairs_.size() * 8).append(text_);
  sent.emplace_back(mine, comm_->frames);
  texts->assign(size_t(size), "another call"), pairs->assign(size_t(size), {});
  (*texts)[size_t(comm_->rank)] = text_, (*pairs)[size_t(comm_->rank)] = pairs_;
  std::vector<int> there;
  std::vector<char> status(mpi.status_nbytes);
  Word request = 0;
  for (int peer = 0; peer < size; peer++)
    if (peer != comm_->rank)
      isend.call(sent.back().first.data(), int(mine.size()), mpi.byte, peer, tag, frames, &request);
  const double until = engine::now() + seconds;
  for (int peer = 0; peer < size; peer++) {
    for (bool heard = peer == comm_->rank; !heard && engine::now() < until;) {
      int found = 0, n = 0;
      if (iprobe.call(peer, tag, frames, &found, status.data()) || !found) {
        sched_yield();
        continue;
      }
      get_count.call(status.data(), mpi.byte, &n);
      std::string bytes(static_cast<size_t>(n), 0);
      recv.call(bytes.data(), n, mpi.byte, peer, tag, frames, status.data());
      uint64_t theirs[2];
      memcpy(theirs, bytes.data(), sizeof theirs);
      if (theirs[0] != head[0]) continue;  // from a call that was given up
      heard = true;
      there.push_back(peer);
      (*pairs)[size_t(peer)].resize(theirs[1]);
      if (theirs[1]) memcpy((*pairs)[size_t(peer)].data(), bytes.data() + sizeof theirs, theirs[1] * 8);
      (*texts)[size_t(peer)] = bytes.substr(sizeof theirs + theirs[1] * 8);
    }
  }
  there.push_back(comm_->rank);
  std::sort(there.begin(), there.end());
  return there;
}

int Check::wait() {
  ReleaseGil released_gil;
  const double until = engine::now() + patience;
  for (int done = 0; !done;) {
    if (int error = test.call(&request_, &done, library().ignored_status)) return error;
    if (!done && engine::now() > until) {
      static auto& kept = *new std::vector<std::shared_ptr<Check>>;  // MPI may still write to it
      kept.push_back(shared_from_this());
      std::vector<std::string> texts;
      std::vector<std::vector<int64_t>> pairs;
      const std::vector<int> there = exchange(grace, &texts, &pairs);
      std::vector<int> missing;
      for (int rank = 0; rank < comm_->size; rank++)
        if (!std::count(there.begin(), there.end(), rank)) missing.push_back(rank);
      char rest[64];
      snprintf(rest, sizeof rest, " not come within %g s, and ", patience);
      const std::string text = named(missing) + (missing.size() == 1 ? " has" : " have") + rest +
                               named(there) + " called " + text_;
      comm_->fail(text);
      return code_of(MISMATCH, text);
    }
    if (!done) sched_yield();
  }
  return result();
}

std::string Check::difference(double seconds) {
  ReleaseGil released_gil;
  std::vector<std::string> texts;
  std::vector<std::vector<int64_t>> pairs;
  exchange(seconds, &texts, &pairs);
  const bool alike =
      std::all_of(texts.begin(), texts.end(), [&](const std::string& one) { return one == texts[0]; });
  return alike ? odd_pair(text_, pairs) : grouped(texts);
}

int Check::result() {
  if (!sum_) return 0;
  sum_ = 0;
  return code_of(MISMATCH, difference(patience));
}

std::shared_ptr<engine::Task> Check::task() {
  if (!task_) task_ = make_request(engine_library(), &request_, status_, 0);
  return task_;
}

std::string text_of(const CollectiveCall& call, const std::vector<Block>& sent,
                    const std::vector<Block>& received) {
  const Operation& op = call.op;
  const size_t size = size_t(call.comm.size);
  std::string text = text_of(call.name, call.form);
  if (!op.pairs && (!sent.empty() || !received.empty())) {
    const bool by_sent = received.empty() || (op.listed && sent.size() > received.size());
    const std::vector<Block>& blocks = by_sent ? sent : received;
    uint64_t nbytes = op.listed ? 0 : (op.reduction >= 0 ? blocks.back() : blocks[0]).nbytes(),
             n = blocks.size();
    for (size_t i = 0; op.listed && i < std::min(n, size); i++) nbytes += blocks[i].nbytes();
    text += " of " + amount(nbytes ? call.decisive()->element : 0, int64_t(nbytes));
    for (size_t i = 0; op.listed && i < std::min(n, size); i++)
      text += (i ? "," : " in ") + std::to_string(blocks[i].entries);
  }
  if (op.root >= 0) text += " from root " + std::to_string(call.root());
  return text;
}

int check(const CollectiveCall& call, std::shared_ptr<Check>* made) {
  const Operation& op = call.op;
  const size_t size = size_t(call.comm.size);
  std::vector<Block> sent, received;
  std::vector<int64_t> pairs;
  if (call.valid && !op.neighbours) call.blocks(&sent, &received);
  if (op.pairs) {
    pairs.assign(4 * size, 0);
    for (SideName name : {send_side, recv_side}) {
      const std::vector<Block>& blocks = name == send_side ? sent : received;
      for (size_t i = 0; i < blocks.size(); i++) {
        const size_t peer = call.buffers[name].many ? i : size_t(call.root());
        if (!blocks[i].type || (op.root >= 0 && int(peer) == call.comm.rank)) continue;
        int64_t* pair = &pairs[2 * (name == send_side ? peer : size + peer)];
        pair[0] = blocks[i].type->element, pair[1] = int64_t(blocks[i].nbytes());
      }
    }
  }
  std::string text = text_of(call, sent, received);
  if (op.reduction >= 0) {
    std::string name = "a user-defined operation";
    for (const auto& [handle, known] : operation_names)
      if (handle == library().handle_of(call.words[op.reduction])) name = known;
    text += " with " + name;
  }
  return Check::begin(call.comm.shared_from_this(), std::move(text), std::move(pairs), made);
}

int check_named(Word handle, const char* text) {
  Comm* comm = checks && !reentrant ? find(handle) : nullptr;
  if (!comm || comm->size == 1) return 0;
  return guarded(*comm, [&] {
    std::shared_ptr<Check> made;
    if (int error = Check::begin(comm->shared_from_this(), text, {}, &made)) return error;
    const int code = made->wait();
    return code ? raise(comm->handle, code) : 0;
  });
}

}  // namespace layer
}  // namespace compcoll
