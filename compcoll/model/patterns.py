"""What exchanges of all ranks at once get of the network, found from what collectives take there.

A collective is measured, and the figure is that with which the model takes as long: of MPI's own the part of
the bandwidth, of this library's the part of work and sending that does not overlap. So it holds whatever
the model does not know: how flows meet in switches, ranks that wait for each other on crowded cores,
messages that go one way at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from itertools import cycle
from math import sqrt
from time import perf_counter

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.comm import Comm
from compcoll.model.advisor import measure_speed
from compcoll.model.network import leaders_of
from compcoll.model.plain import by_the_book
from compcoll.model.predict import Call, not_hidden, simulated
from compcoll.model.profile import CodecSpeed, MachineProfile

__all__ = ["measure_patterns", "midmean", "sample", "slowest"]

FLOAT = np.dtype(np.float32)
#: Bytes of messages, from what sockets hold to what lasts, and how often they are exchanged.
REPEATS = {256 << 10: 25, 1 << 20: 25, 4 << 20: 9, 32 << 20: 5}
#: Fewer times, but thrice, where that would take longer; sizes that take too long once are left out.
SIZE_SECONDS, CALL_SECONDS = 2.0, 0.85
#: Codecs without and with work for processors, on any data alike, and one algorithm for all sizes.
CODECS = ("raw", "zfp:rate=8")
RULES = {"min_nbytes": 1, "rule": [{"op": "Allgather", "algorithm": "ring"}]}
#: Ranks that exchange messages with each other, while all others do the same: at least so many.
GROUP = 4
#: Least share that is looked for, and most that may be exposed.
LEAST, MOST = 0.02, 3.0


@dataclass(frozen=True)
class Exchange:
    """A collective of a group of ranks.

    Attributes
    ----------
    pattern : str
        What it stands for; see `MachineProfile`.
    op : str
    call : callable
        Does it, with the blocks that are sent and those that are received, each of shape (ranks, values).
    fit : callable
        The figure with which the model takes so many seconds for a `Call`.
    ratio : float
        Bytes of a block by those that are sent.
    """

    pattern: str
    op: str
    call: Callable[[np.ndarray, np.ndarray], object]
    fit: Callable[[Call, float], float]
    ratio: float = 1.0


def measure_patterns(comm: MPI.Intracomm, machine: MachineProfile) -> MachineProfile:
    """The machine with what exchanges get of its network; collective. Nothing where ranks share nodes."""
    if comm.size < 2 or len(set(leaders_of(comm))) < comm.size:
        return machine
    groups = max(1, comm.size // GROUP)
    group = MPI.Intracomm(comm.Split(min(comm.rank // GROUP, groups - 1), comm.rank))
    powers_of_two = comm.allreduce(not group.size & (group.size - 1), MPI.LAND)
    plain = _of_mpi(group, machine, powers_of_two)
    speeds = [slowest(comm, measure_speed(codec(spec), sample(FLOAT))) for spec in CODECS]
    raw, coded = (_of_this_library(group, machine, *one) for one in zip(CODECS, speeds, strict=True))
    # Those that take least have two turns in each round.
    points = _measure(comm, group, [*plain, *coded, *raw, *coded], machine.network.bandwidth)
    group.Free()
    return replace(
        machine, patterns={one.pattern: points[one] for one in plain},
        exposed={
            one.pattern: [(speed.encode, points[x]) for speed, x in zip(speeds, (one, other), strict=True)]
            for one, other in zip(raw, coded, strict=True)
        },
    )  # fmt: skip


def slowest(comm: MPI.Intracomm, speed: CodecSpeed) -> CodecSpeed:
    """The least figures of any rank; collective."""
    return CodecSpeed(*(comm.allreduce(x, MPI.MIN) for x in astuple(speed)))


def sample(dtype: np.dtype, n: int = 1 << 18) -> np.ndarray:
    """Smooth values with noise, as fields are; normal ones, as weights are, for 16 bits."""
    rng = np.random.default_rng(1)
    if dtype.itemsize == 2:
        return (0.02 * rng.standard_normal(n)).astype(dtype)
    return (np.sin(np.arange(n) * 1e-3) + 1e-3 * rng.standard_normal(n)).astype(dtype)


# -- the collectives, and what fits their times


def _of_mpi(group: MPI.Intracomm, machine: MachineProfile, in_pairs: bool) -> list[Exchange]:
    """MPI's collectives, Alltoall only where ranks exchange in pairs there: else it is a shift, too."""
    mine = group.rank

    def exchange(pattern: str, op: str, call: Callable[[np.ndarray, np.ndarray], object]) -> Exchange:
        def fit(call: Call, seconds: float) -> float:
            return _share(
                lambda part: by_the_book(call, replace(machine, patterns={pattern: [(1, part)]})), seconds
            )

        return Exchange(pattern, op, call, fit)

    return [
        *([exchange("pairs", "Alltoall", group.Alltoall)] if in_pairs else []),
        exchange("shift", "Reduce_scatter_block",
                 lambda send, recv: group.Reduce_scatter_block(send, recv[mine])),
        exchange("ring", "Allgather", lambda send, recv: group.Allgather(send[mine], recv)),
    ]  # fmt: skip


def _of_this_library(
    group: MPI.Intracomm, machine: MachineProfile, spec: str, speed: CodecSpeed
) -> list[Exchange]:
    """Those of this library with a codec."""
    comm, mine = Comm(group, policy={"codec": spec, **RULES}), group.rank
    row = cycle(range(group.size))  # values that are not in caches, as a caller's are not

    def fit(call: Call, seconds: float) -> float:
        way = comm.policy.decide(call.op, FLOAT, call.nbytes, call.size, "", "network")
        call = replace(call, workers=comm.workers)
        return _exposed(call, machine, speed, way.algorithm, way.chunk_nbytes, seconds)

    return [
        Exchange("all", "Alltoall", comm.Alltoall, fit, speed.ratio),
        Exchange("ring", "Allgather", lambda send, recv: comm.Allgather(send[mine], recv), fit, speed.ratio),
        Exchange("chain", "Bcast", lambda send, recv: comm.Bcast(send[next(row)]), fit, speed.ratio),
    ]


def _share(model: Callable[[float], float], seconds: float) -> float:
    """The part of the bandwidth with which a model takes so long; 1 where it takes longer anyway."""
    low, high = LEAST, 1.0
    if model(high) >= seconds:
        return high
    while high > 1.005 * low:
        middle = sqrt(low * high)
        low, high = (middle, high) if model(middle) >= seconds else (low, middle)
    return high


def _exposed(
    call: Call, machine: MachineProfile, speed: CodecSpeed, algorithm: str, chunk_nbytes: int, seconds: float
) -> float:
    """The part of what could be hidden that is not."""
    hidden = simulated(call, machine, speed, machine.call, algorithm, chunk_nbytes)
    apart = not_hidden(call, machine, speed, algorithm, chunk_nbytes)
    return float(np.clip((seconds - hidden) / max(apart - hidden, 1e-9), 0, MOST))


# -- their times


def midmean(values: Iterable[float]) -> float:
    """The interquartile mean: no single value changes it much, nor which of two modes has the median."""
    ordered = np.sort(np.fromiter(values, np.float64))
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def _measure(
    comm: MPI.Intracomm, group: MPI.Intracomm, turns: list[Exchange], bandwidth: float
) -> dict[Exchange, list[tuple[int, float]]]:
    """For each exchange bytes that are sent, and the figure that fits, in the mean of all groups."""
    points: dict[Exchange, list[tuple[int, float]]] = {exchange: [] for exchange in turns}
    most = comm.allreduce(group.size, MPI.MAX)
    for nbytes, repeats in REPEATS.items():
        least = (most - 1) * nbytes / bandwidth
        if least > CALL_SECONDS:
            break
        times = _times(comm, group, turns, nbytes, min(repeats, max(3, int(SIZE_SECONDS / least))))
        for exchange, found in points.items():
            figure = exchange.fit(Call(exchange.op, nbytes, group.size), midmean(times[exchange]))
            found.append((int(nbytes / exchange.ratio), comm.allreduce(figure, MPI.SUM) / comm.size))
    return points


def _times(
    comm: MPI.Intracomm, group: MPI.Intracomm, turns: list[Exchange], nbytes: int, rounds: int
) -> dict[Exchange, list[float]]:
    """Seconds of each, in rounds of another random order: what calls leave to the next disturbs all alike."""
    send = np.tile(sample(FLOAT, nbytes // 4), (group.size, 1))
    recv = np.ones_like(send)
    seconds: dict[Exchange, list[float]] = {exchange: [] for exchange in turns}
    order = np.random.default_rng(rounds)  # the same on all ranks
    for turn in np.concatenate([order.permutation(len(turns)) for _ in range(rounds)]):
        exchange = turns[turn]
        comm.Barrier()
        start = perf_counter()
        exchange.call(send, recv)
        seconds[exchange].append(group.allreduce(perf_counter() - start, MPI.MAX))
    return seconds
