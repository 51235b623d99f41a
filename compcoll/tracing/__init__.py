"""Tracing of whole programs: calls are counted, and on request each rank writes them to a file.

A program records under ``compcoll run``, or with ``COMPCOLL_TRACE``: ``recording`` takes the layer's
``records``, adds them up, passes them to ``writer``, and ends by an ``exchange`` among the ranks. ``compcoll
report`` works without MPI: ``reader`` reads the files of all ranks, and ``rows`` groups their calls.
``findings`` makes a conclusion and lists, and ``tables`` tables, for the terminal and the HTML ``page``;
``perfetto`` writes a file for Perfetto.
"""

__all__ = ["VERSION"]

#: Version of the format of trace files.
VERSION = 1
