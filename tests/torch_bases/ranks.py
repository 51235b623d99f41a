"""torch's base classes of tests, without the processes that they would start: the ranks are there already."""

from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase

import compcoll.torch

WORLD = MPI.COMM_WORLD


class InRanks:
    """Takes the place of `MultiProcessTestCase._spawn_processes`: this process is a rank."""

    @property
    def world_size(self):
        return WORLD.size

    @property
    def device_type(self):
        return "cpu"

    def _spawn_processes(self):
        self.rank, self.file_name = WORLD.rank, WORLD.bcast(self.file_name)

    def begin(self):
        """The default group compresses all that it can; small ones go to MPI in tests/torch."""
        options = compcoll.torch.Options("lossless", min_nbytes=0)
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
