"""torch's base classes of tests, run in the ranks of this job instead of processes that they would start."""

from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase

import compcoll.torch

WORLD = MPI.COMM_WORLD


class InRanks:
    """Mixin that replaces `MultiProcessTestCase._spawn_processes`: this process is a rank already."""

    @property
    def world_size(self):
        return WORLD.size

    @property
    def device_type(self):
        return "cpu"

    def _spawn_processes(self):
        self.rank, self.file_name = WORLD.rank, WORLD.bcast(self.file_name)

    def begin(self):
        """Make a default group that compresses all that it can; tests/torch has groups with small calls."""
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
    """Base of DTensor's tests; `with_comms` makes a default group for each test and destroys it."""

    def init_pg(self, eager_init=False, backend=None):
        self.begin()


class FSDPRanks(InRanks, FSDPTest):
    """Base of FSDP's tests, which makes a default group for every test."""

    def _spawn_processes(self):
        super()._spawn_processes()
        self.begin()
        torch.manual_seed(42)

    def tearDown(self):
        dist.barrier()
        dist.destroy_process_group()
        super().tearDown()
