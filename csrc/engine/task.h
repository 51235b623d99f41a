// Something under way that has to be moved on until it is done.
#pragma once
#include <chrono>
#include <thread>

namespace compcoll {
namespace engine {

class Task {
 public:
  // Size from which coding a block or sending a message counts as long.
  static constexpr uint64_t long_nbytes = 512 << 10;

  virtual ~Task() = default;
  // Progresses without waiting; whether anything progressed.
  virtual bool step() = 0;
  virtual bool done() = 0;
  // Whether it may never complete.
  virtual bool broken() const { return false; }
  // Whether there is so much to do that somebody should begin at once.
  virtual bool is_long() const { return false; }
  // Whether a device is at it, which tells nobody when it has ended.
  virtual bool is_on_device() const { return false; }
  // Leaves the core to others for so long, or until there is something to do.
  virtual void rest(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  // Seconds for which there was nothing to do, of who waits for it.
  virtual void waited(double) {}
};

}  // namespace engine
}  // namespace compcoll
