"""Where rank 0 is found by the others: a name that other nodes do not know is no address."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

from mpi4py import MPI

__all__ = ["find_address"]

_LOOPBACK = "127.0.0.1"
#: From linux/sockios.h: the address of an interface.
_SIOCGIFADDR = 0x8915
#: Seconds that a connection may take.
_PATIENCE = 2.0


def find_address(comm: MPI.Intracomm, node: MPI.Comm) -> str:
    """An address of rank 0's host that all nodes reach; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    node : MPI.Comm
        Those of its ranks that share a node.

    Raises
    ------
    OSError
        On all ranks, where no address of that host is reached from all nodes; the message lists them.
    """
    if comm.allreduce(int(node.Get_size()), MPI.MIN) == comm.Get_size():
        return _LOOPBACK
    door = _Door() if comm.Get_rank() == 0 else None
    places, port, word = comm.bcast(None if door is None else (list(_addresses()), door.port, door.word))
    tries = node.Get_rank() == 0
    reached = [not tries or _answers(place, port, word) for place in places]
    common = [all(column) for column in zip(*comm.allgather(reached), strict=True)]
    if door is not None:
        door.close()
    if not any(common):
        raise OSError(f"rank 0 is not reached at {', '.join(places)}; set MASTER_ADDR and MASTER_PORT")
    return places[common.index(True)]


class _Door:
    """Says a word to whoever comes."""

    def __init__(self) -> None:
        self.word = secrets.token_bytes(16)
        self._socket = socket.create_server(("", 0), backlog=1024)
        self.port = self._socket.getsockname()[1]
        Thread(target=self._greet, daemon=True).start()

    def _greet(self) -> None:
        with suppress(OSError):
            while True:
                guest, _ = self._socket.accept()
                with guest, suppress(OSError):
                    guest.sendall(self.word)

    def close(self) -> None:
        """Let nobody in any more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _answers(place: str, port: int, word: bytes) -> bool:
    try:
        with socket.create_connection((place, port), _PATIENCE) as line:
            return line.recv(len(word), socket.MSG_WAITALL) == word
    except OSError:
        return False


def _addresses() -> Iterator[str]:
    """The interface that gloo is told to use, the host's name, then all interfaces but loopback."""
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
