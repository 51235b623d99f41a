# cython: language_level=3
# distutils: language = c++
"""Bindings of the memory that processes of a node share (csrc/engine/shared_memory.h)."""

import os

from libc.stdint cimport uint64_t
from libcpp.memory cimport make_shared, shared_ptr

#: The most bytes of a segment, of which those in use have memory; half of the machine's, where that is
#: less.
MOST_NBYTES = 1 << 38

cdef shared_ptr[CSharedMemory] memory
cdef bint tried = False


def address():
    """Where other processes find this one's segment: process, file descriptor, bytes and token.

    Returns
    -------
    tuple of int or None
        None where the system has no memory to share.
    """
    global memory, tried
    cdef shared_ptr[CSegment] segment
    cdef uint64_t nbytes
    if not tried:
        tried = True
        nbytes = min(MOST_NBYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
        segment = create_segment(nbytes)
        if segment.get() != NULL:
            memory = make_shared[CSharedMemory](segment)
    if memory.get() == NULL:
        return None
    found = memory.get().own().get().address()
    return found.pid, found.fd, found.nbytes, found.token


def attach(addresses) -> bool:
    """Map the segments of other processes; False where any of them is None or cannot be mapped."""
    cdef CSegmentAddress wanted
    cdef shared_ptr[CSegment] segment
    if None in addresses:
        return False
    for wanted.pid, wanted.fd, wanted.nbytes, wanted.token in addresses:
        if not memory.get().attached(wanted.token):
            segment = open_segment(wanted)
            if segment.get() == NULL:
                return False
            memory.get().attach(segment)
    return True


cdef class Neighbours:
    """The ranks of a communicator that share memory with this one.

    Parameters
    ----------
    key : int
        Of 64 bits; no other communicator of any two of the processes has it.
    rank : int
        This rank.
    tokens : sequence of int
        Of each rank's segment; 0 where that is not shared with this rank, and of this rank.
    """

    def __init__(self, uint64_t key, int rank, tokens):
        cdef uint64_t token
        self.own = make_shared[CNeighbours]()
        self.own.get().memory = memory
        self.own.get().key, self.own.get().rank = key, rank
        for token in tokens:
            if token and not memory.get().attached(token):
                raise ValueError(f"segment {token:#x} is not attached")
            self.own.get().tokens.push_back(token)
