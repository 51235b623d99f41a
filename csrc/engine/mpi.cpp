#include "mpi.h"

#include <climits>
#include <cstring>

namespace compcoll {
namespace engine {
namespace {

// Any nonzero number, in place of MPI's error for a message that its counts cannot describe.
constexpr int too_large = -1;

template <class Handle>
class MpiWire : public Wire {
 public:
  MpiWire(const Library& library, Handle comm) : mpi_(library), comm_(comm) {}

  int send(int32_t op, const uint8_t* data, uint64_t nbytes, int peer, int tag) override {
    return begin<const void*>(mpi_.isend, op, data, nbytes, peer, tag);
  }

  int recv(int32_t op, uint8_t* data, uint64_t room, int peer, int tag) override {
    return begin<void*>(mpi_.irecv, op, data, room, peer, tag);
  }

  int poll(std::vector<Done>* done) override {
    if (requests_.empty()) return 0;
    using Testsome = int (*)(int, Handle*, int*, int*, void*);
    int n = int(requests_.size()), found = 0;
    indices_.resize(n);
    statuses_.resize(n * mpi_.status_nbytes);
    int error = reinterpret_cast<Testsome>(mpi_.testsome)(n, requests_.data(), &found, indices_.data(),
                                                          statuses_.data());
    if (error && error != mpi_.in_status) return error;
    if (found <= 0) return 0;  // MPI_UNDEFINED is negative
    for (int i = 0; i < found; i++) done->push_back(one(indices_[i], i, error));
    drop_finished();
    return 0;
  }

  uint64_t under_way() const override { return requests_.size(); }

  // MPI_Testsome without requests returns at once. A probe makes progress and receives nothing.
  void progress() override { probe(0, 0); }

  void refuse(int peer, int tag) override {
    using Isend = int (*)(const void*, int, Handle, int, int, Handle, Handle*);
    Handle request;  // never waited for, and there may be no memory to keep it
    reinterpret_cast<Isend>(mpi_.isend)(nullptr, 0, Handle(mpi_.byte), peer, tag, comm_, &request);
  }
  bool is_refused(int tag) override { return probe(mpi_.any_source, tag); }

 private:
  bool probe(int source, int tag) {
    using Iprobe = int (*)(int, int, Handle, int*, void*);
    int flag = 0;
    statuses_.resize(mpi_.status_nbytes);
    const int error = reinterpret_cast<Iprobe>(mpi_.iprobe)(source, tag, comm_, &flag, statuses_.data());
    return !error && flag;
  }

  template <class Pointer>
  int begin(void* function, int32_t op, Pointer data, uint64_t nbytes, int peer, int tag) {
    using Begin = int (*)(Pointer, int, Handle, int, int, Handle, Handle*);
    if (nbytes > INT_MAX) return too_large;
    Handle request;
    int error =
        reinterpret_cast<Begin>(function)(data, int(nbytes), Handle(mpi_.byte), peer, tag, comm_, &request);
    if (error) return error;
    requests_.push_back(request);
    ops_.push_back(op);
    return 0;
  }

  // Completion of request `i`, from status `k`.
  Done one(int i, int k, int error) {
    const char* status = statuses_.data() + size_t(k) * mpi_.status_nbytes;
    int its_error = 0, nbytes = 0;
    if (error) memcpy(&its_error, status + mpi_.status_error_offset, sizeof its_error);
    if (!its_error) nbytes = int(count_of(mpi_, status));
    return {ops_[i], its_error, nbytes};
  }

  void drop_finished() {
    size_t kept = 0;
    for (size_t i = 0; i < requests_.size(); i++) {
      if (requests_[i] == Handle(mpi_.request_null)) continue;
      requests_[kept] = requests_[i];
      ops_[kept++] = ops_[i];
    }
    requests_.resize(kept);
    ops_.resize(kept);
  }

  const Library& mpi_;
  const Handle comm_;
  std::vector<Handle> requests_;
  std::vector<int32_t> ops_;
  std::vector<int> indices_;
  std::vector<char> statuses_;
};

// A task that MPI tests for completion.
class Tested : public Task {
 public:
  bool step() override {
    if (done_) return false;
    int flag = 0;
    error = test(&flag);
    return done_ = flag || error;
  }
  bool done() override { return done_; }
  virtual int test(int* flag) = 0;
  int error = 0;

 private:
  bool done_ = false;
};

class MpiRequest : public Tested {
 public:
  MpiRequest(const Library& library, void* request, void* status, uint64_t nbytes)
      : mpi_(library), request_(request), status_(status), nbytes_(nbytes) {}
  bool is_long() const override { return nbytes_ > long_nbytes; }
  int test(int* flag) override {
    return reinterpret_cast<int (*)(void*, int*, void*)>(mpi_.test)(request_, flag, status_);
  }

 private:
  const Library& mpi_;
  void *const request_, *const status_;
  const uint64_t nbytes_;
};

}  // namespace

std::unique_ptr<Task> make_request(const Library& library, void* request, void* status, uint64_t nbytes) {
  return std::make_unique<MpiRequest>(library, request, status, nbytes);
}

int error_of(const Task& task) {
  auto tested = dynamic_cast<const Tested*>(&task);
  return tested ? tested->error : 0;
}

int64_t count_of(const Library& library, const void* status) {
  int nbytes = 0;
  if (library.handle_nbytes == 4) {
    using GetCount = int (*)(const void*, uint32_t, int*);
    reinterpret_cast<GetCount>(library.get_count)(status, uint32_t(library.byte), &nbytes);
  } else {
    using GetCount = int (*)(const void*, uint64_t, int*);
    reinterpret_cast<GetCount>(library.get_count)(status, library.byte, &nbytes);
  }
  return nbytes;
}

std::unique_ptr<Wire> make_wire(const Library& library, uint64_t comm) {
  if (library.handle_nbytes == 4) return std::make_unique<MpiWire<uint32_t>>(library, uint32_t(comm));
  return std::make_unique<MpiWire<uint64_t>>(library, comm);
}

int complete(const Library& library, uint64_t request) {
  if (library.handle_nbytes == 4)
    return reinterpret_cast<int (*)(uint32_t)>(library.grequest_complete)(uint32_t(request));
  return reinterpret_cast<int (*)(uint64_t)>(library.grequest_complete)(request);
}

}  // namespace engine
}  // namespace compcoll
