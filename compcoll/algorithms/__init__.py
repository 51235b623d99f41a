"""Collective algorithms over the verbs of `compcoll.runtime`, one a file."""

from compcoll.algorithms.allgather import recursive_doubling_allgather, ring_allgather
from compcoll.algorithms.allreduce import allreduce, reduce
from compcoll.algorithms.alltoall import alltoall
from compcoll.algorithms.bcast import chain_bcast, tree_bcast
from compcoll.algorithms.reduce_scatter import compressed_sum, direct_sum, reduce_scatter, ring_sum
from compcoll.algorithms.rooted import gather, scatter

__all__ = [
    "allreduce", "alltoall", "chain_bcast", "compressed_sum", "direct_sum", "gather",
    "recursive_doubling_allgather", "reduce", "reduce_scatter", "ring_allgather", "ring_sum", "scatter",
    "tree_bcast",
]  # fmt: skip
