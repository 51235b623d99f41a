// Collectives with every rank's input and expected output, from the file that cases.py writes.
#pragma once
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/coding.h"
#include "engine/schedule.h"

namespace compcoll {
namespace standin {

struct Buffer {
  std::vector<char> before, after;
};

struct Rank {
  std::shared_ptr<engine::Schedule> schedule;
  std::vector<Buffer> buffers;
};

struct Case {
  std::string name;
  uint32_t dtype;
  std::string codec;
  double tolerance;  // largest difference from the expected value; 0 for integers
  std::vector<int32_t> nodes;  // node of each rank
  std::vector<Rank> ranks;
};

class File {
 public:
  explicit File(const char* path) : in_(path, std::ios::binary) {
    if (!in_) throw std::runtime_error(std::string("cannot open ") + path);
  }

  std::vector<Case> cases() {
    std::vector<Case> found(number<int32_t>());
    for (Case& one : found) {
      one.name = text();
      one.codec = text();
      one.dtype = number<int32_t>();
      one.tolerance = number<double>();
      one.ranks.resize(number<int32_t>());
      one.nodes = list<int32_t>();
      for (Rank& rank : one.ranks) read(&rank);
    }
    return found;
  }

 private:
  void read(Rank* rank) {
    auto s = std::make_shared<engine::Schedule>();
    s->rank = number<int32_t>();
    s->size = number<int32_t>();
    s->n_buffers = number<int32_t>();
    s->n_frames = number<int32_t>();
    s->n_tags = number<int32_t>();
    s->ops = list<engine::Op>();
    s->blocks = list<engine::BlockRef>();
    s->successors = list<int32_t>();
    s->scratch = list<engine::Scratch>();
    s->count_users();
    rank->schedule = s;
    rank->buffers.resize(s->n_buffers);
    for (Buffer& buffer : rank->buffers) {
      buffer.before = list<char>();
      buffer.after = list<char>();
    }
  }

  template <class T>
  T number() {
    T value;
    in_.read(reinterpret_cast<char*>(&value), sizeof value);
    if (!in_) throw std::runtime_error("the file ends too early");
    return value;
  }

  template <class T>
  std::vector<T> list() {
    std::vector<T> values(number<int64_t>());
    if (!values.empty()) in_.read(reinterpret_cast<char*>(values.data()), values.size() * sizeof(T));
    if (!in_) throw std::runtime_error("the file ends too early");
    return values;
  }

  std::string text() {
    auto letters = list<char>();
    return {letters.begin(), letters.end()};
  }

  std::ifstream in_;
};

}  // namespace standin
}  // namespace compcoll
