"""Construction of process groups on MPI's ranks.

Under torchrun MPI is not initialised yet: the first group initialises it with torch's ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.util import Finalize
from typing import Any

import torch.distributed as dist
from mpi4py import MPI
from torch.distributed import distributed_c10d as c10d

from compcoll.engine import _engine
from compcoll.engine.start import start_engine, start_threads
from compcoll.launch.bootstrap import is_forked
from compcoll.launch.pmi import ranks_of
from compcoll.launch.torchrun import start_mpi
from compcoll.policy.policy import check_same
from compcoll.torch import groups, job_end, policies, store
from compcoll.torch.completion_thread import completion_thread
from compcoll.torch.group_state import GroupState
from compcoll.torch.policies import Options

__all__ = ["forget", "make_group"]

# A copy, as a program may assign another communicator to `MPI.COMM_WORLD`.
_WORLD = MPI.COMM_WORLD
_HOW = "start the program by `mpiexec -n N python script.py`"
#: State of the default group.
_default: list[GroupState] = []


def make_group(opts: Any, options: Any) -> GroupState:
    """Make the state of a process group, or raise RuntimeError if MPI lacks its ranks; collective over them.

    The ranks first meet in torch's store, which names missing ones, and then call MPI.
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
    store.watch_store(opts.store if is_first else c10d._get_default_store(), is_first)
    with _engine.plain_calls():  # the level that MPI has, not the one that a program has asked for
        level = MPI.Query_thread()
    settings = policies.settled(options)
    has_threads = isinstance(settings, str) or _has_threads()  # an error of the settings is reported first
    mine = settings, _WORLD.Get_rank(), groups.next_serial(), level, has_threads
    what = f"the process group {opts.group_id!r}"
    everyone = store.exchange(opts.store, rank, size, mine, timeout.total_seconds(), what)
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
    serial = groups.next_serial([serial for _, _, serial, *_ in everyone]) - 1
    try:
        with _engine.plain_calls():  # COMM_WORLD may have a policy of its own
            comm = _create(ranks := [one for _, one, *_ in everyone], serial)
            job_end.add_job(comm, ranks)
            job_end.post_exceptions()
        group = GroupState(comm, opts.group_id, timeout, options, serial, _default[0] if _default else None)
    except MPI.Exception as error:
        raise RuntimeError(
            f"MPI has no communicators for the process group {opts.group_id!r} beside "
            f"{len(groups.all_groups())} others, which take two each (MPICH has some "
            f"2,000; destroy_process_group frees them): {error}"
        ) from error
    if is_first:
        _default[:] = [group]
    return group


def _has_threads() -> bool:
    start_engine()
    try:
        completion_thread()
    except RuntimeError:
        return False
    return start_threads()


def _create(ranks: Sequence[int], serial: int) -> MPI.Intracomm:
    """Make a communicator of these ranks of COMM_WORLD, in this order; collective over them."""
    everyone = _WORLD.Get_group()
    some = everyone.Incl(ranks)
    made = MPI.Intracomm(_WORLD).Create_group(some, serial % 32_768)
    some.Free()
    everyone.Free()
    return made


def _start_mpi(opts: Any) -> None:
    """Initialise MPI on all of torch's ranks, even for a smaller first group: MPI cannot add ranks later."""
    common, rank, size = opts.store, opts.group_rank, opts.group_size
    if dist.is_initialized():
        common, rank, size = c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    try:
        start_mpi(common, rank, size, opts.timeout.total_seconds())
    except TimeoutError as error:
        raise RuntimeError(f"{error}; the first group of this backend is made by all ranks") from None
    if is_forked():
        Finalize(None, job_end.at_exit, exitpriority=1)


def forget(group: GroupState) -> None:
    """Forget a group that was freed."""
    if group in _default:
        _default.clear()
        policies.warn_of_unmatched()
        job_end.end_job()
    elif not _default and not groups.all_groups():
        store.forget_store()
