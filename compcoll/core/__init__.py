"""The ground, which imports nothing of compcoll.

_cpu            C++: codecs of csrc/cpu, checksums, compiled schedules; _gpu operations on memory of GPUs
dtypes.py       element types of frames; sizes.py bytes as people write them
environment.py  variables ``COMPCOLL_*``; errors.py exceptions; names.py suggestions for misspelt names
library.py      the check that there is an MPI; exchange.py objects between ranks
"""
