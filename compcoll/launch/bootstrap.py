"""The client of `compcoll.launch.pmi`: processes without mpiexec become the ranks of an MPICH job.

Programs call `bootstrap` with an address; `compcoll.launch.torchrun` gets the address from torch's store.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import math
import operator
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from threading import Lock
from types import TracebackType
from typing import Any

from mpi4py.run import set_abort_status

from compcoll.launch import pmi

__all__ = [
    "become_rank",
    "bootstrap",
    "import_mpi",
    "initialise",
    "is_forked",
    "listen",
    "node_name",
    "patch_method",
]

#: Seconds between two attempts to reach rank 0, and the limit of one attempt.
_PAUSE, _PATIENCE = 0.05, 10.0
_SHARED_MEMORY = re.compile(r"/dev/shm/mpich_\S+")

_lock = Lock()
#: Descriptors of this process's connections, watch and pmi. MPICH needs them after Python's end.
_connections: list[int] = []


def bootstrap(rank: int, size: int, address: str, *, secret: str = "", timeout: float = 60.0) -> None:
    """Make this process, which mpiexec did not start, a rank of MPI, and initialise MPI; collective.

    Each of ``size`` processes that a program started itself (by multiprocessing with spawn, Ray, Dask,
    Jupyter, srun) calls it before `mpi4py.MPI` is imported, or with ``mpi4py.rc.initialize = False``. Rank 0
    starts a small server at the address, which ends with the last rank. As under mpiexec, if a rank ends
    without ``MPI_Finalize``, the others are killed one second later.

    Parameters
    ----------
    rank : int
        0 to ``size - 1``, different for each process.
    size : int
    address : str
        ``"host:port"``, equal on all ranks: an address of rank 0's host that the others can reach, and a free
        port there.
    secret : str
        Equal on all ranks; a process cannot join without it. Pass a random one on a network that others can
        reach.
    timeout : float
        Seconds to wait for the other ranks.

    Raises
    ------
    TypeError, ValueError
        For a wrong argument.
    RuntimeError
        If MPI is already initialised or is an Open MPI, and if the ranks do not match: a rank occurs twice,
        has another size or secret, or has left.
    TimeoutError
        If ranks are missing; the error names them.
    OSError
        If rank 0 cannot listen at the address.
    """
    rank, size = operator.index(rank), operator.index(size)
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not one of {size} ranks, 0 to {size - 1}")
    if not isinstance(secret, str):
        raise TypeError(f"a secret is a str, not {type(secret).__name__}")
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout {timeout} is not a positive number of seconds")
    place = _parse(address)
    import_mpi(needed=True)
    become_rank(rank, size, place, listen(*place) if rank == 0 else None, secret, timeout)


def import_mpi(*, needed: bool = False) -> Any:
    """Import `mpi4py.MPI` without initialising MPI.

    Raises
    ------
    RuntimeError
        With ``needed``, if this process cannot become a rank of such a job.
    """
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        rc = mpi4py.rc  # whose finalize is initialize where it is None
        rc.initialize, rc.finalize = False, rc.initialize if rc.finalize is None else rc.finalize
    from mpi4py import MPI

    if needed and MPI.Is_initialized():
        world = MPI.COMM_WORLD
        raise RuntimeError(
            f"MPI is initialised in this process already, as rank {world.rank} of {world.size}: "
            "compcoll.bootstrap comes before mpi4py.MPI is imported, once"
        )
    if needed and MPI.get_vendor()[0] == "Open MPI":
        raise RuntimeError(
            "Open MPI's processes have to be started by its mpiexec: `mpiexec -n N python script.py`; "
            "compcoll.bootstrap needs MPICH (pip install mpich)"
        )
    return MPI


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address of this host, or at all if it is empty; port 0 means any free port."""
    try:
        if not host:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=1024)
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=1024)
    except OSError as error:
        raise OSError(error.errno, f"rank 0 cannot listen at {host}:{port}: {error.strerror}") from None


def become_rank(
    rank: int, size: int, place: tuple[str, int], listener: socket.socket | None, secret: str, timeout: float
) -> None:
    """Join the other ranks and initialise MPI; `bootstrap` has the parameters.

    Rank 0 passes a ``listener`` at ``place`` for the server that it starts.
    """
    with _lock:
        MPI = import_mpi(needed=True)
        if listener is not None:
            _start_server(listener, size, secret, timeout)
        line, watch = _join(rank, size, place, secret, timeout)
        _connections[:] = watch.detach(), line.detach()
        os.register_at_fork(after_in_child=_disconnect)
        _end_with(_connections[0])
        with _environment(PMI_FD=_connections[1], PMI_RANK=rank, PMI_SIZE=size, MPIR_CVAR_PMI_VERSION=1):
            initialise(MPI)
    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        raise RuntimeError(
            f"{MPI.Get_library_version().splitlines()[0]} does not speak PMI-1: it has this process as rank "
            f"{world.rank} of {world.size}, not {rank} of {size}; start the program by its own mpiexec"
        )
    world.Barrier()  # all ranks of a node have opened what they share
    _unlink_shared_memory()
    _announce_ends(MPI)


def _parse(address: str) -> tuple[str, int]:
    if not isinstance(address, str):
        raise TypeError(f"an address is a str, 'host:port', not {address!r}")
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{address!r} is not 'host:port' with a port from 1 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _start_server(listener: socket.socket, size: int, secret: str, timeout: float) -> None:
    parameters = {"listener": listener.fileno(), "size": size, "secret": secret, "timeout": timeout}
    # Command line and environment would reveal the secret.
    with listener:
        done = subprocess.run(
            [sys.executable, "-I", "-S", pmi.__file__],
            input=json.dumps(parameters).encode(),
            pass_fds=[listener.fileno()],
            cwd="/",
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    if done.returncode:
        raise RuntimeError(f"the server of PMI did not start: {sys.executable} ended with {done.returncode}")


def _join(
    rank: int, size: int, place: tuple[str, int], secret: str, timeout: float
) -> tuple[socket.socket, socket.socket]:
    """Connect to the server on both channels, and wait until all ranks have."""
    with ExitStack() as opened:
        line = opened.enter_context(_connect(rank, size, place, timeout))
        _introduce(line, rank, size, "pmi", secret)
        with suppress(OSError):  # the server gives the reason on the first connection
            watch = opened.enter_context(socket.create_connection(place, _PATIENCE))
            _introduce(watch, rank, size, "watch", secret)
        answer, _, reason = _read_line(line).partition(" ")
        if answer != pmi.JOINED:
            kind = TimeoutError if answer == "late" else RuntimeError
            raise kind(reason or "the server of PMI has ended")
        opened.pop_all()
    return line, watch


def _connect(rank: int, size: int, place: tuple[str, int], timeout: float) -> socket.socket:
    """Connect to the server, which rank 0 may start later."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection(place, max(min(_PATIENCE, deadline - time.monotonic()), 0.001))
        except OSError as error:
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"rank {rank} of {size}: rank 0, whose server is at {place[0]}:{place[1]}, did not come "
                    f"within {timeout:g} s: {error.strerror or error}"
                ) from None
            time.sleep(_PAUSE)


def _introduce(line: socket.socket, rank: int, size: int, channel: str, secret: str) -> None:
    """Authenticate a connection as a rank's."""
    pmi.keep_alive(line)
    line.settimeout(_PATIENCE)
    try:
        protocol, _, nonce = _read_line(line).partition(" ")
    except TimeoutError:
        protocol = nonce = ""
    if protocol != pmi.PROTOCOL and channel == "pmi":
        place = ":".join(map(str, line.getpeername()[:2]))
        raise RuntimeError(f"rank {rank} of {size}: another program answers at {place}")
    host = f"process {os.getpid()} on {socket.gethostname()}"
    hello = f"{rank} {size} {channel} {node_name()} {host}"
    line.sendall(f"{pmi.proof(secret, nonce, hello)} {hello}\n".encode())
    line.settimeout(None)  # the server keeps the time


def _read_line(line: socket.socket) -> str:
    """Receive one line, or the rest of the connection."""
    received = b""
    while not received.endswith(b"\n"):
        data = line.recv(1)
        if not data:
            break
        received += data
    return received.decode(errors="replace").strip()


def node_name() -> str:
    """Name this process's node: equal for processes that can share memory and read each other's."""
    found = [socket.gethostname()]
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as boot:
            found.append(boot.read().strip())
        found.extend(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid"))
        found.append(str(os.stat("/dev/shm").st_dev))
    return "/".join(found)


def _end_with(fd: int) -> None:
    """Let the kernel kill this process when the server closes the connection, as mpiexec would.

    A thread could not do this: MPI_Init and MPI_Finalize hold the GIL, and wait for ranks that have ended.
    """
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def _disconnect() -> None:
    """Close the connections in a forked process, so that they end with its parent."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in _connections:
        os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


@contextmanager
def _environment(**variables: object) -> Iterator[None]:
    """Set variables for MPI_Init, without those of another launcher of this process or its parent."""
    names = [name for name in os.environ if name.startswith("PMI_") or name in variables]
    before = {name: os.environ.pop(name) for name in names}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


def initialise(MPI: Any) -> None:
    """Initialise MPI at the level of threads that the import of mpi4py.MPI would."""
    MPI.Init_thread(thread_level(MPI))


def thread_level(MPI: Any) -> int:
    """Thread level that ``mpi4py.rc`` requests."""
    from mpi4py import rc

    return int(getattr(MPI, f"THREAD_{rc.thread_level.upper()}") if rc.threads else MPI.THREAD_SINGLE)


def is_forked() -> bool:
    """True if multiprocessing made this process by fork or forkserver, and ends it without exit handlers."""
    return parent_process() is not None and "--multiprocessing-fork" not in sys.orig_argv


def _announce_ends(MPI: Any) -> None:
    """Notify the server at once when this process finalises MPI, and end the process if it aborts."""
    finalize, abort, hook = MPI.Finalize, MPI.Comm.Abort, sys.excepthook

    @wraps(finalize)
    def end() -> None:
        finalize()
        # MPICH removes them in exit(3), but other processes end by _exit(2).
        os.write(_connections[1], b"cmd=finalize\n")
        os.read(_connections[1], 64)

    @wraps(abort)
    def Abort(self: Any, errorcode: int = 0) -> None:
        abort(self, errorcode)
        os._exit(errorcode & 0xFF or 1)  # MPICH 5.0 returns, and waits for a launcher's signal

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hook(kind, error, trace)
        set_abort_status(error)  # MPI_Finalize would wait for the others, which wait for this one

    MPI.Finalize, sys.excepthook = end, excepthook
    if is_forked():
        Finalize(None, lambda: sys.exc_info()[0] or MPI.Is_finalized() or end(), exitpriority=0)
    patch_method(MPI.Comm, "Abort", Abort)


def patch_method(cls: type, name: str, method: Callable[..., Any]) -> None:
    """Replace a method of a class in C, whose attributes Python cannot set."""
    (attributes,) = (a for a in gc.get_referents(cls.__dict__) if isinstance(a, dict))
    attributes[name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


def _unlink_shared_memory() -> None:
    """Remove the names of memory that MPICH shares within a node; MPICH leaves them if ranks are killed."""
    with open("/proc/self/maps") as maps:
        for name in set(_SHARED_MEMORY.findall(maps.read())):
            with suppress(OSError):
                os.unlink(name)
