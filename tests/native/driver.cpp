// Runs the engine on ranks that are threads of this process, for sanitizers: `driver FILE`, with the file of
// cases.py. Several collectives are in flight at once on each rank; the caller waits for some, and the
// progress thread completes the others.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <future>
#include <thread>

#include "cases.h"
#include "cpu/table.h"
#include "engine/clock.h"
#include "engine/engine.h"
#include "standin.h"

namespace compcoll {
namespace CC_LEVEL { extern const Level level; }
namespace standin {
namespace {

using engine::End;
constexpr int repeats = 3;  // each collective is waited for once, and completed by the progress thread twice
std::atomic<int> failures{0};

bool check(bool ok, const std::string& what) {
  if (!ok) {
    failures++;
    fprintf(stderr, "FAILED: %s\n", what.c_str());
  }
  return ok;
}

engine::Coding coding_of(const Case& one) {
  static const Level* active = &CC_LEVEL::level;
  engine::Coding coding;
  coding.level = &active;
  coding.dtype = one.dtype;
  int codec = 0;
  while (active->codecs[codec] && active->codecs[codec]->name != one.codec) codec++;
  coding.lossless = one.codec == "raw";
  uint64_t params = one.codec == "int8" ? 64 : 0;
  coding.attempts = {{codec, {{params, 0}}}, {0, {}}};
  if (coding.lossless) coding.attempts.pop_back();
  return coding;
}

// One rank's part in a case.
struct RankRun {
  const Case& one;
  std::vector<std::vector<char>> memory;
  std::shared_ptr<engine::Run> run;

  RankRun(engine::Engine& engine, World& world, const Case& c, int rank, int comm) : one(c) {
    std::vector<engine::Place> buffers;
    for (const Buffer& buffer : c.ranks[rank].buffers) memory.push_back(buffer.before);
    for (auto& bytes : memory) buffers.emplace_back(reinterpret_cast<uint8_t*>(bytes.data()));
    std::unique_ptr<engine::Wire> wire = std::make_unique<Wire>(world.network, comm, rank);
    if (c.nodes.front() != c.nodes.back() || c.nodes[0] != c.nodes[1])
      wire = engine::make_node_wire(std::move(wire), world.neighbours(comm, rank, c.nodes));
    const engine::Coding coding = coding_of(c);
    run = engine.begin(c.ranks[rank].schedule, coding, coding, buffers, std::move(wire), {7, 1 << 20});
  }

  bool right(int rank) const {
    for (size_t i = 0; i < memory.size(); i++) {
      const auto& wanted = one.ranks[rank].buffers[i].after;
      if (!one.tolerance && memory[i] != wanted) return false;
      for (size_t k = 0; one.tolerance && k < wanted.size() / 4; k++) {
        float have, should;
        memcpy(&have, &memory[i][4 * k], 4);
        memcpy(&should, &wanted[4 * k], 4);
        if (!(std::fabs(have - should) <= one.tolerance)) return false;
      }
    }
    return true;
  }
};

bool never() { return false; }

// A run that the progress thread completes.
class Left : public engine::PendingTask {
 public:
  explicit Left(engine::Engine& engine) : engine_(engine) { poll_without_rest(); }
  std::future<End> result() { return result_.get_future(); }

 private:
  void finished() noexcept override {
    engine_.forget(task());
    result_.set_value(end());
  }
  engine::Engine& engine_;
  std::promise<End> result_;
};

// Runs all cases at once on a rank with its own threads.
void all_at_once(World& world, const std::vector<Case>& cases, int rank, int workers) {
  engine::Engine engine(true, 60);
  engine.set_workers(workers, engine::Help::ALWAYS);
  for (int round = 0; round < repeats; round++) {
    std::vector<std::unique_ptr<RankRun>> parts;
    std::vector<std::shared_ptr<Left>> left;
    std::vector<std::future<End>> ends;
    for (size_t i = 0; i < cases.size(); i++) {
      if (rank >= int(cases[i].ranks.size())) continue;
      parts.push_back(std::make_unique<RankRun>(engine, world, cases[i], rank, int(i)));
      left.push_back(std::make_shared<Left>(engine));
      ends.push_back(left.back()->result());
      if ((i + round) % 3) engine.progress().add(left.back(), parts.back()->run);
    }
    for (size_t i = 0; i < parts.size(); i++) {
      // A third each: the caller progresses the run, waits beside the progress thread, or waits for the
      // result.
      End end;
      if (!left[i]->submitted()) {
        end = engine.wait({parts[i]->run}, 1e9, never);
      } else {
        if (i % 2) engine.progress().wait({left[i].get()}, [&] { return left[i]->ended(); }, 60, never);
        end = ends[i].get();
      }
      std::string what = parts[i]->one.name + " on rank " + std::to_string(rank);
      const engine::Error& error = parts[i]->run->error();
      check(end == End::DONE && !error, what + " ends without an error, not " +
                                            std::to_string(int(error.problem)) + " with status " +
                                            std::to_string(error.status));
      check(parts[i]->right(rank), what + " is right");
    }
  }
}

// If a byte of a message is damaged, at least one rank reports an error, and all ranks finish.
void damaged(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    if (one.ranks.size() < 2) continue;
    World world;
    world.network.damaged = 1;
    std::atomic<int> failed{0};
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < one.ranks.size(); rank++)
      threads.emplace_back([&, rank] {
        engine::Engine engine(true, 60);
        engine.set_workers(int(rank) % 2, engine::Help::ALWAYS);
        RankRun part(engine, world, one, int(rank), 0);
        check(engine.wait({part.run}, 1e9, never) == End::DONE, one.name + " ends with a damaged message");
        failed += bool(part.run->error());
      });
    for (auto& thread : threads) thread.join();
    check(failed > 0, one.name + " notices a damaged message");
  }
}

// Without any other rank, a wait ends by the stall limit, or by an interrupt.
void alone(const Case& one) {
  World world;
  engine::Engine impatient(true, 0.05);
  impatient.set_workers(1, engine::Help::ALWAYS);
  RankRun given_up(impatient, world, one, 0, 0);
  double start = engine::now();
  check(impatient.wait({given_up.run}, 1e9, never) == End::TIMEOUT, "a wait is given up");
  check(engine::now() - start > 0.05, "but not too early");
  RankRun pending(impatient, world, one, 0, 1);
  auto left = std::make_shared<Left>(impatient);
  impatient.progress().add(left, pending.run);
  check(left->result().get() == End::TIMEOUT, "the progress thread gives up too");
  engine::Engine patient(false, 60);
  RankRun broken_off(patient, world, one, 0, 2);
  int asked = 0;
  check(patient.wait({broken_off.run}, 1e9, [&] { return ++asked == 3; }) == End::INTERRUPTED,
        "a wait is broken off");
}

// Without a progress thread, calls of `step` and `wait` complete pending runs.
void without_thread(const std::vector<Case>& cases) {
  World world;
  const Case& one = cases[0];
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < one.ranks.size(); rank++)
    threads.emplace_back([&, rank] {
      engine::Engine engine(false, 60);
      auto left = std::make_shared<Left>(engine);
      RankRun pending(engine, world, one, int(rank), 0), waited(engine, world, one, int(rank), 1);
      engine.progress().add(left, pending.run);
      check(engine.wait({waited.run}, 1e9, never) == End::DONE, "what is waited for ends");
      while (!left->ended())
        if (!engine.progress().step()) std::this_thread::yield();
      check(pending.right(int(rank)) && waited.right(int(rank)), "both are right without a thread");
    });
  for (auto& thread : threads) thread.join();
}

// Records whether MPI progresses before anything is sent.
class EarlyPollWire : public Wire {
 public:
  EarlyPollWire(Network& network, bool& early) : Wire(network, 0, 0), early_(early) {}
  int send(int32_t op, const uint8_t* data, uint64_t nbytes, int peer, int tag) override {
    sent_ = true;
    return Wire::send(op, data, nbytes, peer, tag);
  }
  int poll(std::vector<engine::Done>* done) override {
    early_ |= !sent_;
    return Wire::poll(done);
  }

 private:
  bool& early_;
  bool sent_ = false;
};

int64_t slow_encode(void*, uint64_t, engine::Header*, const void*, void*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return engine::Callbacks::FAILED;
}

// Frames are sent before MPI progresses, however long encoding them takes.
void announced(const Case& one) {
  World world;
  engine::Engine engine(false, 60);
  engine::Coding slow = coding_of(one);
  slow.attempts = {{engine::Attempt::CALLBACK, {}}};
  slow.callbacks.encode = slow_encode;
  std::vector<std::vector<char>> memory;
  for (const Buffer& buffer : one.ranks[0].buffers) memory.push_back(buffer.before);
  std::vector<engine::Place> buffers;
  for (auto& bytes : memory) buffers.emplace_back(reinterpret_cast<uint8_t*>(bytes.data()));
  bool early = false;
  auto run = engine.begin(one.ranks[0].schedule, slow, slow, buffers,
                          std::make_unique<EarlyPollWire>(world.network, early), {7, 1 << 20});
  run->step();
  check(!early, one.name + " sends before MPI progresses");
}

int run(const char* path) {
  std::vector<Case> cases = File(path).cases();
  for (int workers : {0, 1, 3}) {
    World world(workers == 1);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; rank++)
      threads.emplace_back([&, rank] { all_at_once(world, cases, rank, workers); });
    for (auto& thread : threads) thread.join();
    printf("%zu collectives at once, %d times, with %d workers a rank\n", cases.size(), repeats, workers);
  }
  damaged(cases);
  alone(cases[0]);
  without_thread(cases);
  announced(cases[0]);
  printf("%d failures\n", failures.load());
  return failures ? 1 : 0;
}

}  // namespace
}  // namespace standin
}  // namespace compcoll

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s FILE\n", argv[0]);
    return 2;
  }
  return compcoll::standin::run(argv[1]);
}
