"""Common fabrics, by their data sheets."""

from __future__ import annotations

from .virtual import Link

__all__ = ["FABRICS", "NODE", "NODE_MEMORY", "network_of"]

#: Processor seconds that the kernel's TCP takes for a byte at either end, as measured on one machine.
_TCP_CPU = 0.4e-9


def _gbit(rate: float) -> float:
    return rate * 1e9 / 8


#: Latency in seconds, bytes per second one way. Ethernet: line rates of IEEE 802.3 and the latency of kernel
#: TCP; InfiniBand: data rate of the IBTA roadmap for 4 lanes after encoding, MPI's latency as published by
#: MVAPICH.
FABRICS = {
    "1gbe": Link(40e-6, _gbit(0.94), cpu=_TCP_CPU),
    "10gbe": Link(20e-6, _gbit(9.4), cpu=_TCP_CPU),
    "25gbe": Link(15e-6, _gbit(23.5), cpu=_TCP_CPU),
    "100gbe": Link(10e-6, _gbit(94), cpu=_TCP_CPU),
    "ndr": Link(1e-6, _gbit(387.9)),
}
#: Link inside a node: PCIe 4.0 with 16 lanes, PCI-SIG's rate after 128b/130b encoding.
NODE = Link(1e-6, 31.5e9 * 0.85)
#: Bytes per second that all cores of a node read and write, an assumption: 12 channels of DDR5-4800 have
#: 461e9 (JEDEC).
NODE_MEMORY = 400e9


def network_of(name: str) -> Link:
    """A fabric by its name, or a port of so many Gb/s that takes no processor time.

    Raises
    ------
    ValueError
        If it is neither.
    """
    return FABRICS[name] if name in FABRICS else Link(1e-6, _gbit(0.97 * float(name)))
