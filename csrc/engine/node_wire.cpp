#include "node_wire.h"

#include <cstring>
#include <new>
#include <unordered_map>
#include <unordered_set>

#include "clock.h"
#include "frame.h"

namespace compcoll {
namespace engine {
namespace {

// Time between two calls that let MPI progress while this wire has no messages there.
constexpr double looking_seconds = 2e-5;

class NodeWire : public Wire {
 public:
  NodeWire(std::unique_ptr<Wire> wire, std::shared_ptr<const Neighbours> neighbours)
      : wire_(std::move(wire)), neighbours_(std::move(neighbours)), memory_(*neighbours_->memory) {}

  int send(int32_t op, const uint8_t* data, uint64_t nbytes, int peer, int tag) override {
    if (!lends(peer)) return wire_->send(op, data, nbytes, peer, tag);
    uint8_t* copy = nullptr;
    if (!post(data, nbytes, peer, tag)) {
      copy = memory_.get_shared(nbytes + MORE_NBYTES);  // the receiver may forward it
      if (!copy) {
        memory_.announce(neighbours_->tokens[peer], neighbours_->key, neighbours_->rank, tag, nbytes);
        announced_.insert(op);
        return wire_->send(op, data, nbytes, peer, tag);
      }
      memcpy(copy, data, nbytes);
      data = copy;
      post(copy, nbytes, peer, tag);
    }
    // A send completes when the receiver has taken the frame, like MPI's long messages. A frame in another
    // process's segment stays there while it has readers.
    if (nbytes && memory_.owns(data)) sends_.push_back({op, data, copy, nbytes});
    else done_.push_back({op, 0, int64_t(nbytes), nullptr});
    return 0;
  }

  int recv(int32_t op, uint8_t* data, uint64_t room, int peer, int tag) override {
    if (!lends(peer)) return wire_->recv(op, data, room, peer, tag);
    recvs_.push_back({op, peer, tag});
    looked_ = false;
    return 0;
  }

  int poll(std::vector<Done>* done) override {
    if (int error = poll_mpi(done)) return error;
    if (!wire_->under_way() && done->empty()) look_at_mpi();
    memory_.progress();
    if (!done_.empty() && memory_.posted()) {
      done->insert(done->end(), done_.begin(), done_.end());
      done_.clear();
    }
    end_sends(done);
    const uint64_t arrivals = memory_.arrivals();
    if (recvs_.empty() || (looked_ && arrivals == seen_)) return 0;
    looked_ = true;
    seen_ = arrivals;
    return end_recvs(done);
  }

  uint64_t under_way() const override {
    return wire_->under_way() + sends_.size() + recvs_.size() + done_.size();
  }
  bool lends(int peer) const override { return neighbours_->tokens[peer]; }
  Allocator* allocator() const override { return &memory_; }
  void release(const uint8_t* frame) override { SharedMemory::release(frame); }
  void pin(const uint8_t* frame) override { memory_.pin(frame); }
  void refuse(int peer, int tag) override { wire_->refuse(peer, tag); }
  bool is_refused(int tag) override { return wire_->is_refused(tag); }

 private:
  struct PendingSend {
    int32_t op;
    const uint8_t* data;
    uint8_t* copy;
    uint64_t nbytes;
  };
  struct PendingRecv {
    int32_t op;
    int peer, tag;
  };

  bool post(const uint8_t* data, uint64_t nbytes, int peer, int tag) {
    return memory_.post(neighbours_->tokens[peer], neighbours_->key, neighbours_->rank, tag, data, nbytes);
  }

  // Frames that MPI receives from ranks of this node are lent like frames in shared memory. An announced send
  // completes after MPI's other completions.
  int poll_mpi(std::vector<Done>* done) {
    size_t kept = done->size();
    if (int error = wire_->poll(done)) return error;
    for (size_t i = kept; i < done->size(); i++) {
      Done one = (*done)[i];
      if (auto found = by_mpi_.find(one.op); found != by_mpi_.end()) {
        if (!found->second) one.error = Done::NO_MEMORY;
        else if (one.error) SharedMemory::release(found->second);
        else one.frame = found->second;
        by_mpi_.erase(found);
      }
      if (announced_.erase(one.op)) done_.push_back(one);
      else (*done)[kept++] = one;
    }
    done->resize(kept);
    return 0;
  }

  // Truncates the message to nothing if there is no memory, so that its sender does not wait forever.
  int recv_by_mpi(const PendingRecv& recv, uint64_t nbytes) {
    static uint8_t nothing;
    uint8_t* memory = nullptr;
    try {
      memory = SharedMemory::get_apart(nbytes);
    } catch (const std::bad_alloc&) {}
    by_mpi_[recv.op] = memory;
    return wire_->recv(recv.op, memory ? memory : &nothing, memory ? nbytes : 0, recv.peer, recv.tag);
  }

  void look_at_mpi() {
    const double time = now();
    if (time - looked_at_mpi_ < looking_seconds) return;
    looked_at_mpi_ = time;
    wire_->progress();
  }

  void end_sends(std::vector<Done>* done) {
    size_t kept = 0;
    for (const PendingSend& send : sends_) {
      if (!SharedMemory::is_taken(send.data)) {
        sends_[kept++] = send;
        continue;
      }
      if (send.copy) memory_.put(send.copy, send.nbytes + MORE_NBYTES);
      done->push_back({send.op, 0, int64_t(send.nbytes), nullptr});
    }
    sends_.resize(kept);
  }

  int end_recvs(std::vector<Done>* done) {
    size_t kept = 0;
    int error = 0;
    for (const PendingRecv& recv : recvs_) {
      Arrival arrival;
      if (error || !memory_.take(neighbours_->key, recv.peer, recv.tag, &arrival)) {
        recvs_[kept++] = recv;
        continue;
      }
      if (arrival.by_mpi) {
        error = recv_by_mpi(recv, arrival.nbytes);
        continue;
      }
      Done one = {recv.op, 0, int64_t(arrival.nbytes), arrival.frame};
      if (arrival.nbytes && !arrival.frame) one.error = Done::NO_MEMORY;
      (arrival.copied ? &done_ : done)->push_back(one);
    }
    recvs_.resize(kept);
    return error;
  }

  const std::unique_ptr<Wire> wire_;
  const std::shared_ptr<const Neighbours> neighbours_;
  SharedMemory& memory_;
  std::vector<PendingSend> sends_;
  std::vector<PendingRecv> recvs_;
  std::vector<Done> done_;
  std::unordered_map<int32_t, const uint8_t*> by_mpi_;  // receive buffers, by operation
  std::unordered_set<int32_t> announced_;  // operations that send by MPI
  bool looked_ = false;
  uint64_t seen_ = 0;
  double looked_at_mpi_ = now();
};

}  // namespace

std::unique_ptr<Wire> make_node_wire(std::unique_ptr<Wire> wire,
                                     std::shared_ptr<const Neighbours> neighbours) {
  return std::make_unique<NodeWire>(std::move(wire), std::move(neighbours));
}

}  // namespace engine
}  // namespace compcoll
