"""torch's base classes of tests, without the processes that they would start: the ranks are there already."""

from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase

import compcoll.torch

WORLD = MPI.COMM_WORLD
#: Options of the default group, by the name under which torch's tests run.
PLAIN: dict = {}
COMPRESSING = {"codec": "lossless", "min_nbytes": 0}


class InRanks:
    """Takes the place of `MultiProcessTestCase._spawn_processes`: this process is a rank."""

    over = PLAIN

    @property
    def world_size(self):
        return WORLD.size

    @property
    def device_type(self):
        return "cpu"

    def _spawn_processes(self):
        self.rank, self.file_name = WORLD.rank, WORLD.bcast(self.file_name)

    def begin(self):
        options = compcoll.torch.Options(**self.over) if self.over else None
        dist.init_process_group(
            "compcoll",
            init_method=f"file://{self.file_name}",
            rank=WORLD.rank,
            world_size=WORLD.size,
            timeout=timedelta(seconds=60),
            pg_options=options,
        )


class DTensorRanks(InRanks, DTensorTestBase):
    """`with_comms` asks for the default group, before each test, and gives it back."""

    def init_pg(self, eager_init=False, backend=None):
        self.begin()


class FSDPRanks(InRanks, FSDPTest):
    """Every test has a default group."""

    def _spawn_processes(self):
        super()._spawn_processes()
        self.begin()
        torch.manual_seed(42)

    def tearDown(self):
        dist.barrier()
        dist.destroy_process_group()
        super().tearDown()


def over_each(cls):
    """The class of tests over the backend, uncompressed and compressed, by their names."""
    name = cls.__name__.removesuffix("Tests")
    return {
        f"Test{name}{label}": type(f"Test{name}{label}", (cls,), {"over": over, "__module__": cls.__module__})
        for label, over in {"Ours": PLAIN, "Compressing": COMPRESSING}.items()
    }
