// Where messages land in the program's memory. Receives whose buffers overlap are none of MPI's, but programs
// that measure bandwidth post a window of them into one buffer, and nobody reads what is there.
//
// MPI receives into a large buffer itself, and the first message of a compressed one lies there until it is
// looked at: nothing else may be written to its place until then. So MPI receives into memory of the layer's
// where another receive has a part of the buffer, and what the layer writes leaves such places out.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace compcoll {
namespace layer {

// Some bytes of memory.
struct Range {
  uint8_t *begin, *end;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

// Bytes of a message that are not written yet: where they belong, one stretch behind the other.
struct Withheld {
  std::vector<std::pair<uint8_t*, uint64_t>> places;
  std::vector<uint8_t> bytes;
  void add(uint8_t* place, const uint8_t* from, uint64_t nbytes);
  // Writes them, but for those of a range.
  void write(const Range& except) const;
};

// One receive's part in its buffer.
class Landing {
 public:
  Landing() = default;
  ~Landing();
  Landing(const Landing&) = delete;

  // MPI is to receive into these bytes, of which a first message may take so many. False where it cannot, since
  // another receive has some of them.
  bool receive_in_place(const Range& bytes, uint64_t first_nbytes);
  // No first message lies there any more. Of what others have withheld, all is written but so many first bytes,
  // which are those of a plain message.
  void looked(uint64_t nbytes);

  // The layer begins to write to these bytes; false where first messages of other receives may lie among them.
  bool begin_write(const Range& bytes);
  void end_write();
  // Writes all bytes of a message that may be written, and has others withheld until they may. `visit_all`
  // calls what it is given with each stretch, from the first one on: its place, its bytes, and how many.
  template <class VisitAll>
  void write_around(const Range& bytes, VisitAll&& visit_all) {
    Around around(*this, bytes);
    visit_all([&around](uint8_t* place, const uint8_t* from, uint64_t nbytes) {
      around.write(place, from, nbytes);
    });
  }

 private:
  // A place of a first message, and what is to be written there later.
  struct Guarded {
    Range bytes;
    uint64_t number;
    Withheld withheld;
  };
  class Around {
   public:
    Around(Landing& landing, const Range& bytes);
    ~Around();
    void write(uint8_t* place, const uint8_t* from, uint64_t nbytes);

   private:
    Landing& landing_;
    std::vector<Guarded> guarded_;
  };

  uint8_t* in_place_ = nullptr;
  Range written_ = {};
};

// Receives in place that may become first messages; and true if one of them has some of these bytes.
extern std::atomic<int> n_in_place;
bool is_guarded(const Range& bytes);

}  // namespace layer
}  // namespace compcoll
