"""A Python program on two ranks that calls MPI by mpi4py and by a library in C; argument: the library."""

import ctypes
import sys

import numpy as np
from mpi4py import MPI

extension = ctypes.PyDLL(sys.argv[1])  # which holds the interpreter's lock, as extension modules do
world = MPI.COMM_WORLD
n, rank, size = 40000, world.rank, world.size
data = np.random.default_rng(0).integers(0, 99, (size, size, n)).astype(float)
mine, there, got = data[rank], np.ascontiguousarray(data[:, rank]), np.zeros((size, n))


def at(array):
    return array.ctypes.data_as(ctypes.c_void_p)


extension.begin()
extension.transpose(at(mine), at(got), n)
wrong = (got != there).sum()
extension.swap(at(mine), at(got), n, 1 - rank)
wrong += (got[0] != data[1 - rank, 0]).sum()
extension.end()
world.Alltoall(mine, got)
wrong += (got != there).sum()
request = world.Isend(mine[0], 1 - rank)
world.Recv(got[0], 1 - rank)
request.Wait()
wrong += (got[0] != data[1 - rank, 0]).sum()
total = world.allreduce(int(wrong))
if rank == 0:
    print(total, "wrong values")
