# Schedules as compiled code has them, and in virtual time (csrc/engine/virtual.h).

import numpy as np

from libc.stdint cimport int32_t, uint64_t, uintptr_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.vector cimport vector


cdef extern from "engine/virtual.h" namespace "compcoll::engine" nogil:
    cdef struct LinkSpeed:
        double latency, bandwidth, overhead, cpu
    cdef struct Machine:
        LinkSpeed network, node
        int ranks_per_node
        double encode, decode, reconstruct, ratio
        double call, memory
        int workers, cores
        double jitter
        int itemsize
    cdef cppclass Interval:
        pass
    cdef cppclass CWorld "compcoll::engine::World":
        CWorld(vector[shared_ptr[CSchedule]], const Machine&, int, cbool, cbool) except +
        double run() except +
        vector[int32_t] stuck()
        size_t lost()
        uint64_t messages, wire_nbytes
        vector[Interval] intervals


cdef extern from * nogil:
    """
    template <class T> static void read_into(std::vector<T>& to, const void* from, size_t n) {
      to.resize(n);
      if (n) memcpy(static_cast<void*>(to.data()), from, n * sizeof(T));
    }
    """
    void read_into[T](vector[T]&, const void*, size_t) except +


cdef class Compiled:
    """A schedule as compiled code has it.

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


cdef LinkSpeed link_of(link):
    cdef LinkSpeed own
    own.latency, own.bandwidth, own.overhead, own.cpu = link.latency, link.bandwidth, link.overhead, link.cpu
    return own


def run(list ranks, profile, int size, bint flip, bint records, interval):
    """Run `Compiled` schedules in virtual time; see ``benchmarks/simulation/virtual.py``.

    Returns
    -------
    seconds : float
    messages, wire_nbytes : int
    stuck : list of int
        Ranks that wait for ever.
    lost : int
        Messages that nobody receives.
    intervals : numpy.ndarray
        Of type ``interval``.
    """
    cdef Machine m
    cdef vector[shared_ptr[CSchedule]] schedules
    cdef Compiled one
    for one in ranks:
        schedules.push_back(one.own)
    m.network, m.node = link_of(profile.network), link_of(profile.node)
    m.ranks_per_node = profile.ranks_per_node
    m.encode, m.decode, m.reconstruct = profile.encode, profile.decode, profile.reconstruct
    m.ratio, m.call, m.memory = profile.ratio, profile.call, profile.memory
    m.workers, m.cores = profile.workers, profile.cores
    m.jitter, m.itemsize = profile.jitter, profile.itemsize
    cdef CWorld* world = new CWorld(schedules, m, size, flip, records)
    cdef double seconds
    try:
        with nogil:
            seconds = world.run()
        intervals = np.empty(world.intervals.size(), interval)
        if intervals.size:
            memcpy(<void*><uintptr_t>intervals.ctypes.data, world.intervals.data(), intervals.nbytes)
        return seconds, world.messages, world.wire_nbytes, list(world.stuck()), world.lost(), intervals
    finally:
        del world
