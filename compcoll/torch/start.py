"""How a process finds its rank: from MPI, which torch's variables of the environment then repeat."""

from __future__ import annotations

import os
import random
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

from compcoll.torch import failure_notice, policies, registry
from compcoll.torch.address import find_address
from compcoll.torch.core import Core
from compcoll.torch.options import Options

__all__ = ["make_core", "set_environment"]

# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD
#: Ports that the system gives to nobody on its own.
_PORTS = range(20_000, 32_000)
_HOW = "start the program by `mpiexec -n N python script.py`"


def set_environment() -> None:
    """Set torch's variables from MPI, where nobody else has set them; collective."""
    if _WORLD.Get_size() == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return  # `make_core` says what is wrong, where the backend is asked for
    node = MPI.Intracomm(_WORLD).Split_type(MPI.COMM_TYPE_SHARED)
    mine: dict[str, object] = {
        "RANK": _WORLD.Get_rank(), "WORLD_SIZE": _WORLD.Get_size(), "LOCAL_RANK": node.Get_rank(),
        "LOCAL_WORLD_SIZE": node.Get_size(),
    }  # fmt: skip
    world = MPI.Intracomm(_WORLD)
    given = world.bcast(os.environ.get("MASTER_ADDR"))
    mine["MASTER_ADDR"] = given or find_address(world, node)
    mine["MASTER_PORT"] = world.bcast(_free_port() if world.Get_rank() == 0 else None)
    node.Free()
    for name, value in mine.items():
        os.environ.setdefault(name, str(value))


def _free_port() -> int:
    ports = random.SystemRandom()
    for _ in range(1000):
        port = ports.choice(_PORTS)
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")


#: The core of the default group.
_default: list[Core] = []


def make_core(opts: Any, options: Any) -> Core:
    """What a process group is behind its shell; collective over its ranks.

    Parameters
    ----------
    opts : torch.distributed's _DistributedBackendOptions
    options : Options or None

    Raises
    ------
    RuntimeError
        Where MPI does not have these ranks.
    """
    rank, size = opts.group_rank, opts.group_size
    if size > _WORLD.Get_size():
        raise RuntimeError(
            f"the process group has {size} ranks, and MPI has {_WORLD.Get_size()}: {_HOW} (torchrun starts "
            "processes that do not know of each other as MPI's)"
        )
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options of the backend compcoll are a compcoll.torch.Options, not {options!r}")
    try:
        return _made(opts, options, rank, size)
    except MPI.Exception as error:
        raise RuntimeError(
            f"MPI has no communicators for process group {opts.group_id!r} beside {len(registry.cores())} "
            f"others, which take two each (MPICH has some 2,000; destroy_process_group frees them): {error}"
        ) from error


def _made(opts: Any, options: Options | None, rank: int, size: int) -> Core:
    comm: Any
    ranks = list(opts.global_ranks_in_group)
    first = not dist.is_initialized()
    if first and size == _WORLD.Get_size():
        comm = MPI.Intracomm(_WORLD).Split(0, rank)
        failure_notice.begin()
    elif not first and _default and ranks:
        comm = _some_of(_default[0].comm, ranks, opts.group_id)
    else:
        comm = _some_of(MPI.Intracomm(_WORLD), _found(opts.store, rank, size), opts.group_id)
    timeout = opts.timeout if options is None or options.timeout is None else options.timeout
    core = Core(comm, opts.group_id, timeout, options, opts.store)
    if first:
        _default[:] = [core]
    return core


def _found(store: Any, rank: int, size: int) -> list[int]:
    """MPI's ranks of the ranks of a group, which tell each other by the store."""
    store.set(f"compcoll/{rank}", str(_WORLD.Get_rank()))
    return [int(store.get(f"compcoll/{other}")) for other in range(size)]


def _some_of(comm: MPI.Intracomm, ranks: list[int], name: str) -> MPI.Intracomm:
    """A communicator of some ranks, in this order; collective over these."""
    everyone = comm.Get_group()
    some = everyone.Incl(ranks)
    made = comm.Create_group(some, sum(map(ord, name)) % 32_768)
    some.Free()
    everyone.Free()
    return made


def split_core(core: Core, ranks: list[int], options: Options | None, store: Any) -> Core | None:
    """The core of some of the ranks of another, None for those that are not among them; collective."""
    mine = ranks.index(core.rank) if core.rank in ranks else MPI.UNDEFINED
    comm: Any = core.comm.Split(0 if mine != MPI.UNDEFINED else MPI.UNDEFINED, max(mine, 0))
    if comm == MPI.COMM_NULL:
        return None
    name = f"{core.name}:{'-'.join(map(str, ranks))}"
    return Core(comm, name, timedelta(seconds=core.timeout), options, store)


def forget(core: Core) -> None:
    """A core is freed."""
    if core in _default:
        _default.clear()
        policies.warn_of_unmatched()
