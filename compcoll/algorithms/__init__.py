"""Collective algorithms over the verbs of `compcoll.schedule.runtime`, one a file.

catalog.py      algorithms by operation and name: the entrance
alltoall, allgather, allreduce, reduce_scatter, bcast, rooted, recursive_halving, two_level
                the algorithms; stream.py a block from one rank to another, of which they consist
cut.py          parts of a block; groups.py ranks on nodes, in rounds, and the verbs among some of them
"""
