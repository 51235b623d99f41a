"""Schedules: an algorithm's operations on one rank, as data that is made once and run many times.

runtime.py      the verbs of algorithms
trace.py        an algorithm is run once, its verbs become operations
graph.py        the schedule; block.py its blocks
chunks.py       chunks of blocks; planes.py those of blocks that have a shape
cache.py        schedules that were made before
"""
