"""torch.distributed's gloo as one more communicator of the benchmarks."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from datetime import timedelta
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["Gloo"]

_SIOCGIFADDR = 0x8915


class Gloo:
    """The communicator methods that the benchmarks call, carried out by gloo.

    The constructor is collective over the ranks of ``comm``. Arrays are NumPy's or torch's, in host memory.

    Raises
    ------
    ImportError, ValueError
        Without torch, or if torch was built without gloo.
    """

    def __init__(self, comm: MPI.Intracomm):
        import torch
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            raise ValueError(f"torch {torch.__version__} was built without gloo")
        self._torch, self._dist = torch, dist
        self.rank, self.size = comm.rank, comm.size
        limit = timedelta(seconds=300)
        # Rank 0 listens on a port that the system chooses, and broadcasts it.
        store = dist.TCPStore(_address(), 0, comm.size, True, limit, False) if comm.rank == 0 else None
        place = comm.bcast(None if store is None else (store.host, store.port))
        if store is None:
            store = dist.TCPStore(*place, comm.size, False, limit)
        dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
        self._tensors: dict[int, tuple[Any, Any]] = {}

    def close(self) -> None:
        """End the process group; collective."""
        self._dist.barrier()
        self._dist.destroy_process_group()

    def _newest(self, name: str, old: str) -> Any:
        """A function of torch.distributed by its newest name; torch has renamed some."""
        return getattr(self._dist, name, None) or getattr(self._dist, old)

    def _tensor(self, array):
        """A tensor on the array's memory."""
        if not isinstance(array, np.ndarray):
            return array
        if id(array) not in self._tensors:
            torch = self._torch
            values = array.view(np.int16) if array.dtype.kind == "V" else array
            tensor = torch.from_numpy(values)
            tensor = tensor.view(torch.bfloat16) if array.dtype.kind == "V" else tensor
            self._tensors[id(array)] = array, tensor  # keeps the array alive, so that its id is not reused
        return self._tensors[id(array)][1]

    def Allgather(self, send, recv) -> None:
        self._newest("all_gather_single", "all_gather_into_tensor")(self._tensor(recv), self._tensor(send))

    def Allreduce(self, send, recv) -> None:
        into = self._tensor(recv)
        into.copy_(self._tensor(send))
        self._dist.all_reduce(into)

    def Allgatherv(self, send, recv) -> None:
        self.Allgather(send, _whole(recv))

    def Alltoallv(self, send, recv) -> None:
        self.Alltoall(_whole(send), _whole(recv))

    def Gatherv(self, send, recv, root: int = 0) -> None:
        self.Gather(send, _whole(recv), root)

    def Scatterv(self, send, recv, root: int = 0) -> None:
        self.Scatter(_whole(send), recv, root)

    def Barrier(self) -> None:
        self._dist.barrier()

    def Reduce(self, send, recv, root: int = 0) -> None:
        # Gloo writes the sum into its input, on every rank.
        total = self._tensor(send).clone() if recv is None else self._tensor(recv).copy_(self._tensor(send))
        self._dist.reduce(total, root)

    def Alltoall(self, send, recv) -> None:
        self._dist.all_to_all_single(self._tensor(recv), self._tensor(send))

    def Bcast(self, buffer, root: int = 0) -> None:
        self._dist.broadcast(self._tensor(buffer), root)

    def Gather(self, send, recv, root: int = 0) -> None:
        parts = list(self._tensor(recv).chunk(self.size)) if self.rank == root else None
        self._dist.gather(self._tensor(send), parts, root)

    def Scatter(self, send, recv, root: int = 0) -> None:
        parts = list(self._tensor(send).chunk(self.size)) if self.rank == root else None
        self._dist.scatter(self._tensor(recv), parts, root)

    def Reduce_scatter_block(self, send, recv) -> None:
        self._newest("reduce_scatter_single", "reduce_scatter_tensor")(self._tensor(recv), self._tensor(send))

    def Send(self, send, dest: int) -> None:
        self._dist.send(self._tensor(send), dest)

    def Recv(self, recv, source: int) -> None:
        self._dist.recv(self._tensor(recv), source)

    def Sendrecv(self, send, dest: int, *, recvbuf, source: int) -> None:
        arriving = self._dist.irecv(self._tensor(recvbuf), source)
        leaving = self._dist.isend(self._tensor(send), dest)
        arriving.wait()
        leaving.wait()


def _whole(buffer):
    """The array without its counts, which are equal in all benchmarks."""
    return buffer[0] if isinstance(buffer, tuple) else buffer


def _address() -> str:
    """This host's address: of gloo's configured interface, else of the host's name, else loopback."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError as error:
                raise ValueError(
                    f"GLOO_SOCKET_IFNAME is {interface!r}, which has no address: {error}"
                ) from None
            return socket.inet_ntoa(found[20:24])
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
