// Schedules of many ranks in virtual time: their duration for given speeds of codecs, cores and links, and
// whether all messages are matched.
//
// A rank has one processor, plus one for each worker. A free processor handles messages first, then runs the
// earliest ready operation to its end. Messages pass through the ports at both ends one after another, cut
// through.
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
  double overhead, cpu;  // seconds of a processor at either end, per message and per byte
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

// An operation, or a processor's work on a message, as it ran; or a message leaving a port.
struct Interval {
  int32_t rank, op;
  double start, end;
  int64_t on_wire;
};

class World {
 public:
  // The schedules of the first ranks in a world of `size`. If there are fewer than `size`, they represent all
  // ranks by symmetry: a message that a simulated rank sends to another rank counts as arriving, at that
  // time, at the simulated rank that represents the addressee, from a source at the same relative position.
  // Positions differ by bits (XOR) with `flip`, else by distance. For one simulated rank on nodes of several
  // ranks, distances of nodes and of positions in them are separate.
  World(const std::vector<std::shared_ptr<Schedule>>& schedules, const Machine& machine, int size, bool flip,
        bool records);

  // Seconds until the last rank is done or stuck.
  double run();

  std::vector<int32_t> stuck() const;  // ranks that wait forever
  size_t lost() const;  // messages that are never received
  uint64_t messages = 0, wire_nbytes = 0;
  std::vector<Interval> intervals;  // if they are recorded

 private:
  struct Message {
    int32_t rank, recv;  // receiver and its operation; NONE while unmatched
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
    std::vector<bool> settled;  // frames whose decoded values have been written in place
    std::vector<uint64_t> frame_nbytes;
    Ready work, idle, receives, sends;
    std::deque<int32_t> arrived;  // messages that a processor has yet to fetch
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
  std::vector<double> out_, in_, nic_out_, nic_in_;  // times at which ports are free again
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  std::priority_queue<double, std::vector<double>, std::greater<double>> cores_;
  // Unmatched messages and receives, by source, rank and tag.
  std::unordered_map<uint64_t, std::deque<int32_t>> unmatched_, wanted_;
  std::mt19937_64 random_;
};

}  // namespace engine
}  // namespace compcoll
