"""Schedules: an algorithm's operations on one rank, as data that is made once and run many times.

runtime.py      the interface that algorithms call
trace.py        an algorithm is run once, and its calls become operations
graph.py        the schedule; block.py its blocks
chunks.py       chunks of blocks; planes.py chunks of blocks with a shape
cache.py        a cache of schedules
"""
