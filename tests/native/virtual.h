// Schedules of many ranks in virtual time: how long they take where codecs, cores and links are as fast as
// somebody says, and whether all messages meet.
//
// A rank has one processor and those of its workers. A processor that is free takes messages first, then the
// earliest operation that is ready, and finishes it. Messages pass one after another through the ports at
// both ends, cut through.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/schedule.h"

namespace compcoll {
namespace engine {

struct LinkSpeed {
  double latency, bandwidth;  // seconds, bytes per second
  double overhead, cpu;  // seconds of a processor at either end for a message, and for each of its bytes
};

// The simulated machine; benchmarks/simulation/virtual.py documents its fields.
struct Machine {
  LinkSpeed network, node;
  int ranks_per_node;
  double encode, decode, reconstruct, ratio;  // bytes per second
  double call, memory;
  int workers, cores;
  double jitter;
  int itemsize;
};

// An operation, or a processor's part in a message, as it ran; or a message on its way out of a port.
struct Interval {
  int32_t rank, op;
  double start, end;
  int64_t on_wire;
};

class World {
 public:
  // The schedules of the first ranks of a world of `size`. Where these are fewer they stand for all: what one
  // of them sends to another rank comes, at that time, from the rank that stands to its place among them as
  // it stands to the addressee: where `flip` by the bits in which ranks differ, else by distance; one rank of
  // several on a node by the distance of nodes, and by that of places in them.
  World(const std::vector<std::shared_ptr<Schedule>>& schedules, const Machine& machine, int size, bool flip,
        bool records);

  // Seconds until the last rank is done, or is stuck.
  double run();

  std::vector<int32_t> stuck() const;  // ranks that wait for ever
  size_t lost() const;  // messages that nobody receives
  uint64_t messages = 0, wire_nbytes = 0;
  std::vector<Interval> intervals;  // where they were to be recorded

 private:
  struct Message {
    int32_t rank, recv;  // who receives it, by which operation; NONE as long as nobody wants it
    int32_t source;
    uint64_t nbytes;
    bool arrived;
  };

  enum What { WORKED, MOVED_OUT, LEFT, REACHED, CAME, FETCHED };

  struct Event {
    double time;
    uint64_t count;
    What what;
    int32_t rank, op, message;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : count > other.count;
    }
  };

  using Ready = std::priority_queue<int32_t, std::vector<int32_t>, std::greater<int32_t>>;

  struct Rank {
    std::shared_ptr<const Schedule> schedule;
    std::vector<int32_t> n_deps;
    std::vector<bool> settled;  // frames whose values stand where they were to be put
    std::vector<uint64_t> frame_nbytes;
    Ready work, idle, receives, sends;
    std::deque<int32_t> arrived;  // messages that a processor has to fetch
    int processors;
    size_t remaining;
  };

  void at(double time, What what, int32_t rank, int32_t op, int32_t message = NONE);
  void happen(const Event& event);
  void go_on(int32_t rank);
  bool handle_message(int32_t rank);
  void occupy(int32_t rank, double seconds, What what, int32_t op, int32_t message = NONE);
  void ready(Rank& rank, int32_t op);
  void finish(int32_t rank, int32_t op);
  void send(int32_t rank, int32_t op);
  void enter(int32_t rank, int32_t message);
  void expect(int32_t rank, int32_t op);
  void deliver(int32_t message);
  double seconds_of(Rank& rank, const Op& op);
  double coding(double nbytes, double speed, double moved, double read = 0) const;
  const LinkSpeed& link(int32_t rank, int32_t peer) const;

  const Machine machine_;
  const int size_;
  const bool flip_, records_;
  double now_ = 0;
  uint64_t count_ = 0;
  std::vector<Rank> ranks_;
  std::vector<Message> log_;
  std::vector<double> out_, in_, nic_out_, nic_in_;  // when ports are free again
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  std::priority_queue<double, std::vector<double>, std::greater<double>> cores_;
  // Messages and receives that have not met yet, by source, rank and tag.
  std::unordered_map<uint64_t, std::deque<int32_t>> unmatched_, wanted_;
  std::mt19937_64 random_;
};

}  // namespace engine
}  // namespace compcoll
