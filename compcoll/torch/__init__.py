"""The backend ``compcoll`` of torch.distributed.

environment.py   torch's environment variables, set from MPI's ranks
make_group.py    construction of a group; job_end.py: the end of a job
group.py         the process group of torch up to 2.13, and the backend of torch from 2.14 on
operations.py    the methods that torch calls, of both
group_state.py   a group of ranks: its communicator, and the operations in flight on it; groups.py: all groups
work.py          an operation from its call to its end; futures.py: its future
completion_thread.py  completion of operations for which no thread waits
collectives.py   operations as calls of MPI
tensors.py       tensors as MPI takes them, and gpu.py where they are
reductions.py    types, sums and others
store.py         messages of the ranks in torch's store
policies.py      the policies of a group, and its options; phases.py whether a call is of a backward pass
report.py        statistics of calls
integration.py   torch.compile, other tools of torch, and its functions that name its own backends
hooks.py         compression beside NCCL or gloo: DDP's hook, and a bucket's way to its future
fsdp.py          FSDP2's objects, and HSDP's
lightning.py     a callback of PyTorch Lightning that sets these; imported by those who use it
compression.py   their state: codecs, errors of quantization by name, bytes; feedback.py adds errors to values
connection.py    their pipelines: groups, threads and streams; node_group.py: memory that a node's ranks share
dcp.py           torch.distributed.checkpoint with compressed files
weight_sync.py   parameters from one rank to all others, in any backend's groups
"""

from __future__ import annotations

import torch as _torch
import torch.distributed as _dist

from compcoll.launch.torchrun import is_deferred as _is_deferred  # the first to import mpi4py.MPI
from compcoll.torch import environment as _environment
from compcoll.torch import integration as _integration
from compcoll.torch import phases as _phases
from compcoll.torch import policies as _policies
from compcoll.torch.compression import ErrorFeedback
from compcoll.torch.fsdp import (
    CompressedAllGather,
    CompressedAllReduce,
    CompressedReduceScatter,
    compress_fsdp,
)
from compcoll.torch.group import CompcollBackend as _CompcollBackend
from compcoll.torch.group import CompcollGroup as _CompcollGroup
from compcoll.torch.hooks import compress_ddp, compressed_hook
from compcoll.torch.policies import Options, set_policy
from compcoll.torch.report import TrainingReport, report
from compcoll.torch.weight_sync import SyncReport, WeightSync

__all__ = [
    "CompressedAllGather",
    "CompressedAllReduce",
    "CompressedReduceScatter",
    "ErrorFeedback",
    "Options",
    "SyncReport",
    "TrainingReport",
    "WeightSync",
    "compress_ddp",
    "compress_fsdp",
    "compressed_hook",
    "load",
    "report",
    "set_policy",
]


def _register() -> None:
    if "compcoll" not in _dist.Backend.backend_list:
        shell: type = _CompcollBackend
        # Only from 2.14 on torch calls the methods of a backend that is written in Python.
        if tuple(map(int, _torch.__version__.split(".")[:2])) < (2, 14):
            shell = _CompcollGroup
            _integration.patch_2_13()
        _dist.Backend.register_backend("compcoll", shell, extended_api=True, devices=["cpu", "cuda"])
        _policies.watch_meshes()
        _phases.watch_joins()
        _integration.keep_works_of_joins()
    if not _is_deferred:
        _environment.set_environment()


_register()


def load() -> None:
    """The entry point of torch, which registers the backend; importing this module has done that."""
