// Work in progress that has to be stepped until it is done.
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
  // Progresses without waiting; true if anything moved.
  virtual bool step() = 0;
  virtual bool done() = 0;
  // True if it may never complete.
  virtual bool broken() const { return false; }
  // True if it has so much to do that it should start at once.
  virtual bool is_long() const { return false; }
  // True if it waits for a device, which does not notify anyone of its completion.
  virtual bool is_on_device() const { return false; }
  // Yields the core for `seconds`, or until there is something to do.
  virtual void rest(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  // Called after a waiter has idled for so many seconds.
  virtual void waited(double) {}
};

}  // namespace engine
}  // namespace compcoll
