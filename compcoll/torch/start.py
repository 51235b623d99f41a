"""How a process finds its rank: under mpiexec from MPI, which torch's variables of the environment repeat.

Elsewhere it is the other way round: the first group has MPI initialised with torch's ranks.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any

import torch.distributed as dist
from mpi4py import MPI
from torch.distributed import distributed_c10d as c10d

from compcoll.engine import _engine
from compcoll.engine.start import start_engine, start_threads
from compcoll.launch import is_launched
from compcoll.launch.bootstrap import is_forked
from compcoll.launch.pmi import ranks_of
from compcoll.launch.torchrun import start_mpi
from compcoll.policy.policy import check_same
from compcoll.torch import peers, policies
from compcoll.torch.core import Core, at_exit, end_job
from compcoll.torch.finisher import finisher
from compcoll.torch.policies import Options

__all__ = ["forget", "make_core", "set_environment"]

# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD
#: Ports that the system does not assign on its own.
_PORTS = range(20_000, 32_000)
_HOW = "start the program by `mpiexec -n N python script.py`"
_LOOPBACK = "127.0.0.1"
#: From linux/sockios.h: the address of an interface.
_SIOCGIFADDR = 0x8915
#: Seconds that a connection may take.
_CONNECT_TIMEOUT = 2.0


def set_environment() -> None:
    """Set torch's variables from MPI where they are not set; collective.

    Not where MPI has one rank that no mpiexec started: programs that start ranks of their own would take the
    variables for those of another launcher. `make_core` says what is wrong where the backend is asked for.
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
    """An address of rank 0's host that all nodes reach, OSError on all ranks if there is none; collective."""
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


#: The core of the default group.
_default: list[Core] = []


def make_core(opts: Any, options: Any) -> Core:
    """The core of a process group, RuntimeError where MPI does not have its ranks; collective over these.

    First the ranks find each other in torch's store, which names those that do not come; then they call MPI.
    ``opts`` are torch's _DistributedBackendOptions.
    """
    rank, size = opts.group_rank, opts.group_size
    if not MPI.Is_initialized():
        _start_mpi(opts)
    if size > _WORLD.Get_size():
        raise RuntimeError(
            f"the process group has {size} ranks, and MPI has {_WORLD.Get_size()}: {_HOW}, or, by torchrun "
            "or a program of your own, import compcoll.torch before anything uses MPI"
        )
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options of the backend compcoll are a compcoll.torch.Options, not {options!r}")
    timeout = opts.timeout if options is None or options.timeout is None else options.timeout
    is_first = not dist.is_initialized()
    peers.watch_store(opts.store if is_first else c10d._get_default_store(), is_first)
    with _engine.plain_calls():  # a program may have asked for less than there is
        level = MPI.Query_thread()
    settings = policies.settled(options)
    has_threads = isinstance(settings, str) or _has_threads()  # an error of the settings is told first
    mine = settings, _WORLD.Get_rank(), peers.next_serial(), level, has_threads
    what = f"the process group {opts.group_id!r}"
    everyone = peers.exchange(opts.store, rank, size, mine, timeout.total_seconds(), what)
    check_same([theirs for theirs, *_ in everyone], rank)
    single = [other for other, (*_, level, _) in enumerate(everyone) if level != MPI.THREAD_MULTIPLE]
    if single:
        raise RuntimeError(
            f"MPI.THREAD_MULTIPLE is missing on {ranks_of(single)}, and the backend compcoll needs it: leave "
            'mpi4py.rc.thread_level at "multiple", or call MPI.Init_thread(MPI.THREAD_MULTIPLE)'
        )
    lacking = [other for other, (*_, has_threads) in enumerate(everyone) if not has_threads]
    if lacking:
        raise RuntimeError(
            f"no threads can be started on {ranks_of(lacking)}, and the backend compcoll needs three: raise "
            "the limit of the system or container (`ulimit -u`, pids.max)"
        )
    serial = peers.next_serial([serial for _, _, serial, *_ in everyone]) - 1
    try:
        with _engine.plain_calls():  # of COMM_WORLD, which may have a policy of its own
            comm = _create(ranks := [one for _, one, *_ in everyone], serial)
            peers.add_job(comm, ranks)
        core = Core(comm, opts.group_id, timeout, options, serial, _default[0] if _default else None)
    except MPI.Exception as error:
        raise RuntimeError(
            f"MPI has no communicators for the process group {opts.group_id!r} beside {len(peers.cores())} "
            f"others, which take two each (MPICH has some 2,000; destroy_process_group frees them): {error}"
        ) from error
    if is_first:
        _default[:] = [core]
    return core


def _has_threads() -> bool:
    start_engine()
    try:
        finisher()
    except RuntimeError:
        return False
    return start_threads()


def _create(ranks: Sequence[int], serial: int) -> MPI.Intracomm:
    """A communicator of some ranks of COMM_WORLD, in this order; collective over these."""
    everyone = _WORLD.Get_group()
    some = everyone.Incl(ranks)
    made = MPI.Intracomm(_WORLD).Create_group(some, serial % 32_768)
    some.Free()
    everyone.Free()
    return made


def _start_mpi(opts: Any) -> None:
    """Initialise MPI on all of torch's ranks, whichever group comes first: MPI cannot take in more later."""
    store, rank, size = opts.store, opts.group_rank, opts.group_size
    if dist.is_initialized():
        store, rank, size = c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    try:
        start_mpi(store, rank, size, opts.timeout.total_seconds())
    except TimeoutError as error:
        raise RuntimeError(f"{error}; the first group of this backend is made by all ranks") from None
    if is_forked():
        Finalize(None, at_exit, exitpriority=1)


def forget(core: Core) -> None:
    """Forget a core that was freed."""
    if core in _default:
        _default.clear()
        policies.warn_of_unmatched()
        end_job()
    elif not _default and not peers.cores():
        peers.forget_store()
