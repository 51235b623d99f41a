// MPI for ranks that are threads of one process: messages are matched in a table of mailboxes.
#pragma once
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <tuple>

#include "engine/node_wire.h"
#include "engine/wire.h"

namespace compcoll {
namespace standin {

// Matches messages by sender, receiver and tag, in order. Small messages are eager: sent before a receive is
// posted.
class Network {
 public:
  static constexpr uint64_t eager_nbytes = 4096;

  struct Post {
    uint64_t nbytes = 0;
    std::vector<uint8_t> copy;      // of an eager message
    const uint8_t* data = nullptr;  // of other messages
    bool done = false;
    int error = 0;
  };
  struct Want {
    uint8_t* data;
    uint64_t room, nbytes = 0;
    bool done = false;
    int error = 0;
  };
  using Key = std::tuple<int, int, int, int>;  // communicator, sender, receiver, tag

  std::shared_ptr<Post> send(Key key, const uint8_t* data, uint64_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex);
    auto post = std::make_shared<Post>();
    post->nbytes = nbytes;
    if (nbytes <= eager_nbytes) {
      post->copy.assign(data, data + nbytes);
      post->done = true;
    } else {
      post->data = data;
    }
    auto& wants = wants_[key];
    if (wants.empty()) {
      posts_[key].push_back(post);
    } else {
      hand_over(*post, *wants.front());
      wants.pop_front();
    }
    return post;
  }

  std::shared_ptr<Want> recv(Key key, uint8_t* data, uint64_t room) {
    std::lock_guard<std::mutex> lock(mutex);
    auto want = std::make_shared<Want>();
    want->data = data;
    want->room = room;
    auto& posts = posts_[key];
    if (posts.empty()) {
      wants_[key].push_back(want);
    } else {
      hand_over(*posts.front(), *want);
      posts.pop_front();
    }
    return want;
  }

  // The next so many non-empty messages arrive with one byte changed.
  int damaged = 0;
  std::mutex mutex;

 private:
  void hand_over(Post& post, Want& want) {
    const uint8_t* from = post.data ? post.data : post.copy.data();
    if (post.nbytes > want.room) {
      want.error = 15;
    } else if (post.nbytes) {
      memcpy(want.data, from, post.nbytes);
      if (damaged > 0 && damaged--) want.data[post.nbytes / 2] ^= 1;
    }
    want.nbytes = post.nbytes;
    post.done = want.done = true;
  }

  std::map<Key, std::deque<std::shared_ptr<Post>>> posts_;
  std::map<Key, std::deque<std::shared_ptr<Want>>> wants_;
};

// Shared by the ranks: messages, and the memory of each node.
struct World {
  static constexpr int most = 4;

  // If memory is scarce, every other rank has an empty segment.
  explicit World(bool is_scarce = false) {
    for (int rank = 0; rank < most; rank++) {
      const uint64_t nbytes = is_scarce && rank % 2 ? 0 : engine::memory_part << 30;
      memories.push_back(std::make_shared<engine::SharedMemory>(engine::Segment::create(nbytes)));
    }
    for (auto& memory : memories)
      for (auto& other : memories)
        if (other != memory) memory->attach(other->own());
  }

  std::shared_ptr<const engine::Neighbours> neighbours(int comm, int rank, const std::vector<int32_t>& nodes) {
    auto found = std::make_shared<engine::Neighbours>();
    found->memory = memories[rank];
    found->key = uint64_t(comm);
    found->rank = rank;
    for (size_t other = 0; other < nodes.size(); other++) {
      const bool near = int(other) != rank && nodes[other] == nodes[rank];
      found->tokens.push_back(near ? memories[other]->own()->address().token : 0);
    }
    return found;
  }

  Network network;
  std::vector<std::shared_ptr<engine::SharedMemory>> memories;
};

class Wire : public engine::Wire {
 public:
  Wire(Network& network, int comm, int rank) : network_(network), comm_(comm), rank_(rank) {}

  int send(int32_t op, const uint8_t* data, uint64_t nbytes, int peer, int tag) override {
    sends_.push_back({op, network_.send({comm_, rank_, peer, tag}, data, nbytes)});
    return 0;
  }

  int recv(int32_t op, uint8_t* data, uint64_t room, int peer, int tag) override {
    recvs_.push_back({op, network_.recv({comm_, peer, rank_, tag}, data, room)});
    return 0;
  }

  int poll(std::vector<engine::Done>* done) override {
    std::lock_guard<std::mutex> lock(network_.mutex);
    retire(sends_, done);
    retire(recvs_, done);
    return 0;
  }

  uint64_t under_way() const override { return sends_.size() + recvs_.size(); }

 private:
  template <class List>
  static void retire(List& list, std::vector<engine::Done>* done) {
    size_t kept = 0;
    for (auto& one : list) {
      if (one.second->done) done->push_back({one.first, one.second->error, int64_t(one.second->nbytes)});
      else list[kept++] = one;
    }
    list.resize(kept);
  }

  Network& network_;
  const int comm_, rank_;
  std::vector<std::pair<int32_t, std::shared_ptr<Network::Post>>> sends_;
  std::vector<std::pair<int32_t, std::shared_ptr<Network::Want>>> recvs_;
};

}  // namespace standin
}  // namespace compcoll
