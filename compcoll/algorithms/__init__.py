"""Collective algorithms over the operations of `compcoll.schedule.runtime`, one in each file.

catalog.py      algorithms by operation and name: start reading here
alltoall, allgather, allreduce, reduce_scatter, bcast, rooted, recursive_halving, two_level
                the algorithms; stream.py their building block, a block from one rank to another
cut.py          parts of a block; groups.py ranks on nodes, in rounds, and the runtime among some of them
"""
