# Schedules in virtual time (virtual.h).


cdef extern from "virtual.h" namespace "compcoll::engine" nogil:
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


cdef LinkSpeed link_of(link):
    cdef LinkSpeed own
    own.latency, own.bandwidth, own.overhead, own.cpu = link.latency, link.bandwidth, link.overhead, link.cpu
    return own


def run_in_virtual_time(list ranks, profile, int size, bint flip, bint records, interval):
    """Run `Compiled` schedules in virtual time; see ``benchmarks/simulation/virtual.py``.

    Returns
    -------
    seconds : float
    messages, wire_nbytes : int
    stuck : list of int
        Ranks that never finish.
    lost : int
        Messages that are never received.
    intervals : numpy.ndarray
        An array of type ``interval``.
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
