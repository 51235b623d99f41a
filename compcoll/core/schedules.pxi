# Schedules in compiled form.

from libc.stdint cimport uintptr_t
from libcpp.memory cimport make_shared
from libcpp.vector cimport vector


cdef extern from * nogil:
    """
    template <class T> static void read_into(std::vector<T>& to, const void* from, size_t n) {
      to.resize(n);
      if (n) memcpy(static_cast<void*>(to.data()), from, n * sizeof(T));
    }
    """
    void read_into[T](vector[T]&, const void*, size_t) except +


cdef class Compiled:
    """A schedule in compiled form.

    Parameters
    ----------
    schedule : compcoll.schedule.graph.Schedule
    """

    def __init__(self, schedule):
        self.own = make_shared[CSchedule]()
        cdef CSchedule* s = self.own.get()
        read_into(s.ops, <void*><uintptr_t>schedule.ops.ctypes.data, len(schedule.ops))
        read_into(s.blocks, <void*><uintptr_t>schedule.blocks.ctypes.data, len(schedule.blocks))
        read_into(s.successors, <void*><uintptr_t>schedule.successors.ctypes.data, len(schedule.successors))
        read_into(s.scratch, <void*><uintptr_t>schedule.scratch.ctypes.data, len(schedule.scratch))
        s.rank, s.size, s.n_buffers = schedule.rank, schedule.size, schedule.n_buffers
        s.n_frames, s.n_tags = schedule.n_frames, schedule.n_tags
        s.count_users()
