"""Tracing of whole programs: calls are counted, and on request written to a file by each rank.

A program that runs under ``compcoll run``, or with ``COMPCOLL_TRACE``, records: ``recording`` takes the
layer's ``records``, adds them up, has ``writer`` write them, and ends by an ``exchange`` among the ranks.
``compcoll report`` reads without MPI: ``reader`` reads the files of all ranks, of which ``tables`` makes
tables, ``page`` an HTML page, and ``perfetto`` a file for Perfetto.
"""

__all__ = ["VERSION"]

#: Version of the format of trace files.
VERSION = 1
