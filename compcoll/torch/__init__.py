"""The backend ``compcoll`` of torch.distributed.

start.py         ranks from MPI, and what a group begins with
address.py       where they find the first of them
group.py         the process group of torch up to 2.13
backend.py       the backend of torch from 2.14 on
operations.py    the methods that torch calls, of both
coalescing.py    several operations as one
collectives.py   each collective as the engine's, or as MPI's
messages.py      messages between two ranks
hooks.py         for those who keep NCCL or gloo, over exchange.py
core.py          a group of ranks, and how a call of theirs begins
registry.py        the groups that there are
work.py          what a call returns, and futures.py what it may be waited for by
reductions.py    sums and others
tensors.py       tensors as contiguous arrays, placing.py also of GPUs
dynamo.py        what torch.compile leaves alone, visibility.py what other tools see
patches.py       functions of torch that name its own backends
gpu.py           the order of streams, and tails.py what GPUs still do when a call is done
watchdog.py      futures, which C++ waits for
policies.py      which policy a group has
options.py       what a group is made with
tally.py         what calls did, and report.py all of them together
failure_notice.py   ranks that leave, and roll_call.py those that wait
"""

from __future__ import annotations

import torch as _torch
import torch.distributed as _dist

from compcoll.torch import policies as _policies
from compcoll.torch import start as _start
from compcoll.torch.coalescing import mend_manager as _mend_manager
from compcoll.torch.hooks import (
    CompressedAllGather,
    CompressedReduceScatter,
    ErrorFeedback,
    compressed_hook,
)
from compcoll.torch.options import Options
from compcoll.torch.policies import set_policy
from compcoll.torch.report import TrainingReport, report

__all__ = [
    "CompressedAllGather", "CompressedReduceScatter", "ErrorFeedback", "Options", "TrainingReport",
    "compressed_hook", "load", "report", "set_policy",
]  # fmt: skip


def _creator():
    """The shell for this version of torch."""
    if _has_trampoline():
        from compcoll.torch.backend import create_backend

        return create_backend
    from compcoll.torch.group import create_group
    from compcoll.torch.patches import patch

    patch()

    return create_group


def _has_trampoline() -> bool:
    """Whether torch calls the methods of a backend that is written in Python: from 2.14 on."""
    major, minor = _torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 14)


def _register() -> None:
    if "compcoll" not in _dist.Backend.backend_list:
        _dist.Backend.register_backend("compcoll", _creator(), extended_api=True, devices=["cpu", "cuda"])
        _policies.watch_meshes()
        _mend_manager()
    _start.set_environment()


_register()


def load() -> None:
    """What torch calls to have the backend registered, which importing this module has done."""
