"""Tracing of whole programs: calls are counted, and on request recorded one by one.

================  ==============================================================================
``names``         which methods are calls, and what their arguments say
``_watch``        a method that notes when it was called and had returned; records, and who takes them
``watch``         puts those in the places of a communicator's methods
``requests``      mpi4py's methods of requests, which note when these are complete
``tally``         calls, bytes and seconds, added up
``trace``         the file that a rank writes; ``lines`` makes its lines
``clock``         how far the clocks of ranks are off
``hints``         why calls were not accelerated, or were slower
``finalize``      what ranks say to each other at the beginning and the end
``recording``     all of that together, for one process
``reader``        a folder of such files, read back
``tables``        calls by operation and size, communicator, place and reason; ``cells``: as words
``predicted``     what plain MPI would have taken
``page``          the report as a page, drawn by ``svg``
``perfetto``      the file that Perfetto opens
================  ==============================================================================
"""

__all__ = ["VERSION"]

#: Of the files of a trace, which are read without MPI.
VERSION = 1
