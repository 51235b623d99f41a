"""A cluster on one machine: network namespaces on a switch, with links of a chosen speed.

From the command line, as root on Linux with iproute2 and MPICH (``pip install mpich``)::

    python -m benchmarks.netlab --hosts 4 --gbit 1 -- python -m benchmarks.osu alltoall --codec lossless
    python -m benchmarks.netlab --hosts 2 --ranks-per-host 4 --count -- python program.py
    python -m benchmarks.netlab --hosts 2 --gbit 5 --shared-cores -- python -m benchmarks.osu alltoall
    python -m benchmarks.netlab --hosts 2 --gbit 0.1 --measure
    python -m benchmarks.netlab --hosts 2 --down 1@3 --timeout 60 -- python program.py

and from Python::

    with Lab(hosts=4, gbit=1) as lab:
        lab.run(["python", "program.py"])

Options before the program go to mpiexec. The exit status is mpiexec's, 124 after ``--timeout`` and 69
if the machine cannot have a lab.

The switch and mpiexec run in their own namespace, so nothing changes outside the lab and no packet leaves
it. A host has IPC, UTS and mount namespaces as well: its ranks share memory with each other but not with
other hosts' ranks, and ``/dev/shm`` is removed with the lab. The hosts share files and cores with the
machine: link speeds are real, compute speeds are not. MPI waits by spinning, so that more ranks than cores
slow everything down. Times show the links only as long as the processors keep up, which `Lab.measure` checks.

By default a host has cores of its own, on a small machine a single one. Its ranks then have no spare core,
which ranks of real nodes have. ``--shared-cores`` gives all cores to all hosts. Never compare times with and
without it.

``--count`` prints the bytes through each host's port; `port_bytes` returns them in a rank.

Plain MPI is not always at its best: UCX's default protocol for long messages may fill a TCP link in one
direction at a time; ``-genv UCX_RNDV_SCHEME am`` fills both. Try both when you compare with plain MPI.

TCP notices a dropped link within 13 s if data is in flight. A program that still runs is ended with an error
15 to 18 s after the drop, as keep-alives would end it on a cluster.
"""

from .lab import Lab, LabError, Unavailable
from .namespace import port_bytes

__all__ = ["Lab", "LabError", "Unavailable", "port_bytes"]
