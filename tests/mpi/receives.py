"""Ways to receive a message: ``RECEIVES[name](comm, into, source, tag, status)``."""

from __future__ import annotations

from collections.abc import Callable

from mpi4py import MPI

NULL = MPI.PROC_NULL


def by_test(request: MPI.Request, status: MPI.Status) -> None:
    while not request.Test(status):
        pass


def by_waitany(request: MPI.Request, status: MPI.Status) -> None:
    requests = [request, MPI.REQUEST_NULL]
    assert MPI.Request.Waitany(requests, status) == 0


def by_waitall(request: MPI.Request, status: MPI.Status) -> None:
    statuses = [status]
    MPI.Request.Waitall([request], statuses)


def by_probe(comm, into, source: int, tag: int, status: MPI.Status) -> None:
    comm.Probe(source, tag, status)
    comm.Recv(into, status.source, status.tag, status)


def by_start(request: MPI.Prequest, status: MPI.Status) -> None:
    request.Start()
    request.Wait(status)


RECEIVES: dict[str, Callable] = {
    "Recv": lambda c, into, source, tag, status: c.Recv(into, source, tag, status),
    "Probe": by_probe,
    "Irecv": lambda c, into, source, tag, status: c.Irecv(into, source, tag).Wait(status),
    "Irecv Test": lambda c, into, source, tag, status: by_test(c.Irecv(into, source, tag), status),
    "Irecv Waitany": lambda c, into, source, tag, status: by_waitany(c.Irecv(into, source, tag), status),
    "Irecv Waitall": lambda c, into, source, tag, status: by_waitall(c.Irecv(into, source, tag), status),
    "Recv_init": lambda c, into, source, tag, status: by_start(c.Recv_init(into, source, tag), status),
    "Mrecv": lambda c, into, source, tag, status: c.Mprobe(source, tag).Recv(into, status),
    "Imrecv": lambda c, into, source, tag, status: c.Mprobe(source, tag).Irecv(into).Wait(status),
    "Sendrecv": lambda c, into, source, tag, status: c.Sendrecv(b"", NULL, 0, into, source, tag, status),
    "Sendrecv_replace": lambda c, into, source, tag, status: c.Sendrecv_replace(
        into, NULL, 0, source, tag, status
    ),
    "Isendrecv": lambda c, into, source, tag, status: c.Isendrecv(b"", NULL, 0, into, source, tag).Wait(
        status
    ),
    "Isendrecv_replace": lambda c, into, source, tag, status: c.Isendrecv_replace(
        into, NULL, 0, source, tag
    ).Wait(status),
}
#: MPI 3 has no Isendrecv, which the layer would call for a message that MPI carries.
HAS_ISENDRECV = MPI.Get_version() >= (4, 0)
if not HAS_ISENDRECV:
    del RECEIVES["Isendrecv"], RECEIVES["Isendrecv_replace"]
