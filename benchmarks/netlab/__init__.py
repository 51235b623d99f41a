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

What precedes the program goes to mpiexec. The exit status is mpiexec's, 124 after ``--timeout`` and 69
where the machine cannot have a lab.

The switch and mpiexec live in a namespace of their own, so nothing changes outside the lab and no
packet leaves it. A host has IPC, UTS and mount namespaces as well: its ranks share memory among
themselves and not with those of other hosts, and ``/dev/shm`` goes with the lab. The hosts share files and
cores with the machine: links are honest, compute is not. MPI waits by spinning, so more ranks than cores
make everything slower. Times are those of the links only as long as the processors keep up;
`Lab.measure` tells.

A host has cores of its own by default, on a small machine a single one, so that its ranks have no spare
core as those of real nodes have. ``--shared-cores`` gives all hosts all cores. Times of the two must never be
compared with each other.

``--count`` prints the bytes through each host's port, `port_bytes` returns them in a rank.

Plain MPI is not always at its best: UCX's default protocol for long messages may fill a TCP link in one
direction at a time, ``-genv UCX_RNDV_SCHEME am`` in both. Who compares with plain MPI tries the two.

A link that drops is noticed by TCP within 13 s where data is on its way. A program that goes on is ended
with an error 15 to 18 s after the drop, as keep-alives would end it on a cluster.
"""

from .lab import Lab, LabError, Unavailable
from .namespace import port_bytes

__all__ = ["Lab", "LabError", "Unavailable", "port_bytes"]
