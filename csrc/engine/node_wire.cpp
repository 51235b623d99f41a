#include "node_wire.h"

#include <cstring>

#include "clock.h"
#include "frame.h"

namespace compcoll {
namespace engine {
namespace {

// Between two looks at MPI where it carries none of the messages that are waited for.
constexpr double looking_seconds = 2e-5;

class NodeWire : public Wire {
 public:
  NodeWire(std::unique_ptr<Wire> wire, std::shared_ptr<const Neighbours> neighbours)
      : wire_(std::move(wire)), neighbours_(std::move(neighbours)), memory_(*neighbours_->memory) {}

  int send(int32_t op, const uint8_t* data, uint64_t nbytes, int peer, int tag) override {
    if (!lends(peer)) return wire_->send(op, data, nbytes, peer, tag);
    uint8_t* copy = nullptr;
    if (!post(data, nbytes, peer, tag)) {
      copy = memory_.get(nbytes + MORE_NBYTES);  // which its receiver may send on
      memcpy(copy, data, nbytes);
      data = copy;
      post(copy, nbytes, peer, tag);
    }
    // A sender goes on when the receiver has taken its frame, as with long messages of MPI. A frame of
    // another process stays there as long as anybody reads it.
    if (nbytes && memory_.owns(data)) sends_.push_back({op, data, copy, nbytes});
    else done_.push_back({op, 0, int64_t(nbytes), nullptr});
    return 0;
  }

  int recv(int32_t op, uint8_t* data, uint64_t room, int peer, int tag) override {
    if (!lends(peer)) return wire_->recv(op, data, room, peer, tag);
    recvs_.push_back({op, data, room, peer, tag});
    looked_ = false;
    return 0;
  }

  int poll(std::vector<Done>* done) override {
    if (int error = wire_->poll(done)) return error;
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
    end_recvs(done);
    return 0;
  }

  uint64_t under_way() const override {
    return wire_->under_way() + sends_.size() + recvs_.size() + done_.size();
  }
  bool lends(int peer) const override { return neighbours_->tokens[peer]; }
  Allocator* allocator() const override { return &memory_; }
  void release(const uint8_t* frame) override { SharedMemory::release(frame); }
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
    uint8_t* data;
    uint64_t room;
    int peer, tag;
  };

  bool post(const uint8_t* data, uint64_t nbytes, int peer, int tag) {
    return memory_.post(neighbours_->tokens[peer], neighbours_->key, neighbours_->rank, tag, data, nbytes);
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

  void end_recvs(std::vector<Done>* done) {
    size_t kept = 0;
    for (const PendingRecv& recv : recvs_) {
      const uint8_t* frame;
      uint64_t nbytes;
      if (!memory_.take(neighbours_->key, recv.peer, recv.tag, &frame, &nbytes)) {
        recvs_[kept++] = recv;
        continue;
      }
      if (recv.data && nbytes && nbytes <= recv.room) {
        memcpy(recv.data, frame, nbytes);
        SharedMemory::release(frame);
        frame = nullptr;
      }
      done->push_back({recv.op, 0, int64_t(nbytes), frame});
    }
    recvs_.resize(kept);
  }

  const std::unique_ptr<Wire> wire_;
  const std::shared_ptr<const Neighbours> neighbours_;
  SharedMemory& memory_;
  std::vector<PendingSend> sends_;
  std::vector<PendingRecv> recvs_;
  std::vector<Done> done_;
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
