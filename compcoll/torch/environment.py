"""Torch's environment variables, set from the ranks of MPI."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from mpi4py import MPI

from compcoll.launch import is_launched

__all__ = ["set_environment"]

# A copy, as a program may assign another communicator to `MPI.COMM_WORLD`.
_WORLD = MPI.COMM_WORLD
#: Ports that the system does not assign on its own.
_PORTS = range(20_000, 32_000)
_LOOPBACK = "127.0.0.1"
#: From linux/sockios.h: the address of an interface.
_SIOCGIFADDR = 0x8915
#: Seconds that a connection may take.
_CONNECT_TIMEOUT = 2.0


def set_environment() -> None:
    """Set torch's variables from MPI unless they are set; collective.

    Without mpiexec MPI has one rank, and nothing is set: programs that start ranks of their own would take
    the variables for another launcher's. `make_group` raises if such a process uses the backend.
    """
    if _WORLD.Get_size() == 1 and not (is_launched() and os.environ.get("WORLD_SIZE", "1") == "1"):
        return
    node = MPI.Intracomm(_WORLD).Split_type(MPI.COMM_TYPE_SHARED)
    mine: dict[str, object] = {
        "RANK": _WORLD.Get_rank(),
        "WORLD_SIZE": _WORLD.Get_size(),
        "LOCAL_RANK": node.Get_rank(),
        "LOCAL_WORLD_SIZE": node.Get_size(),
    }
    world = MPI.Intracomm(_WORLD)
    given = world.bcast(os.environ.get("MASTER_ADDR"))
    mine["MASTER_ADDR"] = given or find_address(world, node)
    mine["MASTER_PORT"] = world.bcast(_free_port() if world.Get_rank() == 0 else None)
    node.Free()
    for name, value in mine.items():
        os.environ.setdefault(name, str(value))


def _free_port() -> int:
    for port in random.SystemRandom().sample(_PORTS, 1000):
        with suppress(OSError), socket.socket() as trial:
            trial.bind(("", port))
            return port
    raise OSError(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")


def find_address(comm: MPI.Intracomm, node: MPI.Comm) -> str:
    """Find an address of rank 0's host that all nodes reach, or raise OSError on all ranks; collective."""
    if comm.allreduce(int(node.Get_size()), MPI.MIN) == comm.Get_size():
        return _LOOPBACK
    server = socket.create_server(("", 0), backlog=1024) if comm.Get_rank() == 0 else None
    found = None if server is None else (list(_addresses()), server.getsockname()[1])
    addresses, port = comm.bcast(found)
    tries = node.Get_rank() == 0
    reached = [not tries or _connects(address, port) for address in addresses]
    common = [all(column) for column in zip(*comm.allgather(reached), strict=True)]
    if server is not None:
        server.close()
    if not any(common):
        raise OSError(f"rank 0 is not reached at {', '.join(addresses)}; set MASTER_ADDR and MASTER_PORT")
    return addresses[common.index(True)]


def _connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _CONNECT_TIMEOUT).close()
        return True
    except OSError:
        return False


def _addresses() -> Iterator[str]:
    """Addresses of gloo's interface, if it is set, the host's name, and addresses of others but loopback."""
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    others = [name for _, name in socket.if_nameindex()]
    if wanted in others:
        yield from _address_of(wanted)
    yield socket.gethostname()
    for name in others:
        if name != wanted:
            yield from (address for address in _address_of(name) if address != _LOOPBACK)


def _address_of(interface: str) -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        yield socket.inet_ntoa(found[20:24])
