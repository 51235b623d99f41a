#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm.h"

namespace compcoll {
namespace layer {

Totals totals[n_names];

const char* text_of(int name) {
#define COMPCOLL_TEXT(n, name, ...) #name,
  static constexpr const char* texts[] = {ACCELERATED(COMPCOLL_TEXT) OTHERS(COMPCOLL_TEXT)
                                              MESSAGES(COMPCOLL_TEXT, COMPCOLL_TEXT, COMPCOLL_TEXT)};
  return texts[name];
}

std::string text_of(Name collective, Form form) {
  std::string text = text_of(collective);
  if (form == nonblocking) text[0] = char(tolower(text[0])), text = "I" + text;
  if (form == persistent) text += "_init";
  return text;
}

std::shared_ptr<const Decision> decision_by_mpi(std::string reason) {
  auto decision = std::make_shared<Decision>();
  decision->reason = std::move(reason);
  return decision;
}

void raise_bound(double bound, double* to) {
  if (std::isnan(bound) || bound > *to) *to = bound;
}

void add(engine::Stats* sum, const engine::Stats& part) {
  sum->raw_nbytes += part.raw_nbytes, sum->wire_nbytes += part.wire_nbytes;
  sum->inside_nbytes += part.inside_nbytes, sum->messages += part.messages, sum->fallbacks += part.fallbacks;
  sum->encode_seconds += part.encode_seconds, sum->decode_seconds += part.decode_seconds;
  sum->wait_seconds += part.wait_seconds;
  sum->workers = std::max(sum->workers, part.workers);
  raise_bound(part.bound, &sum->bound);
  raise_bound(part.encoded, &sum->encoded);
  for (int i = 0; i < 4; i++) sum->dimensions[i] += part.dimensions[i];
  for (const auto& [codec, n] : part.used) {
    auto known = sum->used.begin();
    while (known != sum->used.end() && known->first != codec) ++known;
    if (known == sum->used.end()) sum->used.emplace_back(codec, n);
    else known->second += n;
  }
}

void LastCall::note(std::shared_ptr<const Outcome> outcome) {
  std::lock_guard<std::mutex> lock(mutex_);
  outcome_ = std::move(outcome);
  small_.store(other, std::memory_order_relaxed);
}

std::shared_ptr<const Outcome> LastCall::get(int* small) {
  std::lock_guard<std::mutex> lock(mutex_);
  *small = small_.load(std::memory_order_relaxed);
  return *small == other ? outcome_ : nullptr;
}

void Comm::add(std::shared_ptr<const Outcome> outcome) {
  if (outcome->accelerated) {
    Totals& sums = totals[outcome->name];
    accelerated++, sums.accelerated++;
    sums.raw_nbytes += outcome->stats.raw_nbytes, sums.wire_nbytes += outcome->stats.wire_nbytes;
  }
  last.note(std::move(outcome));
}

void Comm::add_plain(int name, std::shared_ptr<const Decision> reason) {
  auto outcome = std::make_shared<Outcome>();
  outcome->name = name, outcome->decision = std::move(reason);
  add(std::move(outcome));
}

}  // namespace layer
}  // namespace compcoll
