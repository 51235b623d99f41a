# Memory shared by the processes of a node (csrc/engine/shared_memory.h).

from libcpp.memory cimport make_shared

cdef shared_ptr[CSharedMemory] shared_memory
cdef bint tried = False


def segment_address():
    """Address of this process's segment for other processes: process, file descriptor and token.

    Returns
    -------
    tuple of int or None
        None if the system has no shared memory.
    """
    global shared_memory, tried
    cdef shared_ptr[CSegment] segment
    if not tried:
        tried = True
        segment = create_segment(memory_nbytes())
        if segment.get() != NULL:
            shared_memory = make_shared[CSharedMemory](segment)
    if shared_memory.get() == NULL:
        return None
    found = shared_memory.get().own().get().address()
    return found.pid, found.fd, found.token


def attach_segments(addresses) -> bool:
    """Map the segments of other processes; False if any address is None or cannot be mapped."""
    cdef CSegmentAddress wanted
    cdef shared_ptr[CSegment] segment
    if None in addresses:
        return False
    for wanted.pid, wanted.fd, wanted.token in addresses:
        if not shared_memory.get().attached(wanted.token):
            segment = open_segment(wanted)
            if segment.get() == NULL:
                return False
            shared_memory.get().attach(segment)
    return True


cdef class Neighbours:
    """The ranks of a communicator that share memory with this one.

    Parameters
    ----------
    key : int
        64-bit key; no other communicator of any two of the processes has it.
    rank : int
        This rank.
    tokens : sequence of int
        Token of each rank's segment; 0 for this rank, and for ranks that share no segment with it.
    """

    cdef shared_ptr[CNeighbours] own

    def __init__(self, uint64_t key, int rank, tokens):
        cdef uint64_t token
        self.own = make_shared[CNeighbours]()
        self.own.get().memory = shared_memory
        self.own.get().key, self.own.get().rank = key, rank
        for token in tokens:
            if token and not shared_memory.get().attached(token):
                raise ValueError(f"segment {token:#x} is not attached")
            self.own.get().tokens.push_back(token)
