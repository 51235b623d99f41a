"""The simulated runtime: any number of ranks in one process, under a virtual clock.

The same coroutines run over it as over MPI. Ranks, their encoders and the network's ports are busy for
as long as a `Profile` says; everything else takes no time. It proves that an algorithm ends and
delivers every byte, and predicts how long it would take.
"""

from __future__ import annotations

import gc
import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from math import inf
from random import Random

import numpy as np

from compcoll.frame import HEADER_NBYTES
from compcoll.runtime.base import Future, Runtime
from compcoll.runtime.cores import Cores
from compcoll.runtime.links import Link, Profile

__all__ = ["DeadlockError", "Link", "Profile", "SimulatedRuntime", "World", "simulate"]


class DeadlockError(RuntimeError):
    """Ranks wait for messages that nobody sends."""


class SizeBlock:
    """A block of which only the size is simulated."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int):
        self.nbytes = nbytes

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, part: slice) -> SizeBlock:
        return SizeBlock(len(range(*part.indices(self.nbytes))))


class SimulatedFrame:
    """A copy of a block's values, or only its size."""

    __slots__ = ("bound", "nbytes", "settled", "values")

    def __init__(self, block, bound: float, ratio: float, settled: bool = False):
        self.values = block.copy() if isinstance(block, np.ndarray) else None
        self.nbytes = HEADER_NBYTES + int(block.nbytes / ratio)
        self.bound, self.settled = bound, settled


class Message:
    """A frame under way, and who waits for it."""

    __slots__ = ("arrived", "frame", "future")

    def __init__(self, frame: SimulatedFrame, future: Future | None):
        self.frame, self.future, self.arrived = frame, future, False


class World:
    """Virtual time, the event queue, and who waits for which message."""

    def __init__(self, size: int, profile: Profile):
        self.profile = profile
        self.now = 0.0
        self.ranks = [SimulatedRuntime(self, rank, size) for rank in range(size)]
        self.messages = self.wire_nbytes = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._free: defaultdict[tuple, float] = defaultdict(float)
        self._cores = Cores(profile.cores)
        self._random = Random(size)
        # Lists, and only where something waits: a thousand ranks wait for hundreds of chunks each.
        self._unmatched: dict[tuple, list[Message]] = {}
        self._wanted: dict[tuple, list[Future]] = {}
        self._awake: deque[SimulatedRuntime] = deque()

    def run(self, algorithm: Callable[[SimulatedRuntime], Coroutine]) -> float:
        """Run an algorithm on all ranks; the seconds until the last one is done."""
        collecting = gc.isenabled()
        gc.disable()  # nothing here is cyclic, and looking at a million coroutines takes half of the time
        try:
            return self._run(algorithm)
        finally:
            if collecting:
                gc.enable()

    def _run(self, algorithm: Callable[[SimulatedRuntime], Coroutine]) -> float:
        for rt in self.ranks:
            rt.start(algorithm(rt))
            self._awake.append(rt)
        finished = 0.0
        while True:
            while self._awake:
                self._awake.popleft().drain()
            if not self._events:
                break
            self.now, _, action = heapq.heappop(self._events)
            action()
            finished = self.now
        self._check()
        return finished

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time not before now."""
        self._count += 1
        heapq.heappush(self._events, (time, self._count, action))

    def occupy(self, resource: tuple, start: float, seconds: float) -> float:
        """Use a resource when it is next free; the time when that ends."""
        end = max(start, self._free[resource]) + seconds
        self._free[resource] = end
        return end

    def work(self, rank: int, seconds: float, worker: int = 0) -> float:
        """A rank's processor works, once it and one of the cores are free; the time when that ends."""
        key = ("cpu", rank, worker)
        if not self.profile.cores:
            return self.occupy(key, self.now, seconds)
        core = self._cores.choose(key, self.now, self._free[key])
        return self._cores.use(core, key, self.occupy(key, max(self.now, self._cores.ends[core]), seconds))

    def finish(self, rt: SimulatedRuntime, future: Future, value=None) -> None:
        """Complete a future of a rank, and let the rank go on."""
        future.set(value)
        self._awake.append(rt)

    def transmit(self, rt: SimulatedRuntime, frame: SimulatedFrame, dest: int, tag: int) -> Future:
        """Send a frame to a rank."""
        return self.carry(rt, frame, dest, (rt.rank, dest, tag))

    def carry(self, rt: SimulatedRuntime, frame: SimulatedFrame, dest: int, key: tuple) -> Future:
        """A frame leaves through one port and comes in through another, cut-through."""
        profile, sent = self.profile, Future()
        here, there = rt.rank // profile.ranks_per_node, dest // profile.ranks_per_node
        link = profile.node if here == there else profile.network
        place = key[1]
        if here == there:
            ports = (("out", rt.rank), ("in", place))
        else:
            ports = (("nic", here), ("nin", place // profile.ranks_per_node))
        work = link.overhead + frame.nbytes * link.cpu
        ready = self.work(rt.rank, work) if work else self.now
        seconds = frame.nbytes / link.bandwidth
        left = self.occupy(ports[0], ready, seconds)
        came = self.occupy(ports[1], left - seconds + link.latency, seconds)
        if self.profile.jitter:
            came += self._random.random() * self.profile.jitter
        self.messages += 1
        self.wire_nbytes += frame.nbytes
        # Matched in the order of sending, whichever arrives first.
        message = Message(frame, _take(self._wanted, key))
        if message.future is None:
            self._unmatched.setdefault(key, []).append(message)
        self.at(left, lambda: self.finish(rt, sent))
        self.at(came, lambda: self._arrive(self.ranks[key[1]], message, work))
        return sent

    def expect(self, rt: SimulatedRuntime, source: int, tag: int) -> Future:
        """Wait for a frame."""
        key, future = (source, rt.rank, tag), Future()
        message = _take(self._unmatched, key)
        if message is None:
            self._wanted.setdefault(key, []).append(future)
            return future
        message.future = future
        if message.arrived:
            future.set(message.frame)
        return future

    def _arrive(self, rt: SimulatedRuntime, message: Message, work: float) -> None:
        """The last byte is there; its processor may still have to fetch it."""
        if not work:
            self._deliver(rt, message)
            return
        self.at(self.work(rt.rank, work), lambda: self._deliver(rt, message))

    def _deliver(self, rt: SimulatedRuntime, message: Message) -> None:
        message.arrived = True
        if message.future is not None:
            self.finish(rt, message.future, message.frame)

    def _check(self) -> None:
        for rt in self.ranks:
            if rt.error is not None:
                raise rt.error
        stuck = [rt.rank for rt in self.ranks if rt.running]
        if stuck:
            wanted = list(self._wanted)[:8]
            raise DeadlockError(f"ranks {stuck[:8]} wait for (source, dest, tag) {wanted}")
        if self._unmatched:
            lost = list(self._unmatched)[:8]
            raise DeadlockError(f"messages (source, dest, tag) {lost} were never received")


def _take(waiting: dict[tuple, list], key: tuple):
    """The first that waits for a key; None where nothing does."""
    queue = waiting.get(key)
    if queue is None:
        return None
    first = queue.pop(0)
    if not queue:
        del waiting[key]
    return first


class SimulatedRuntime(Runtime):
    """One simulated rank."""

    def __init__(self, world: World, rank: int, size: int):
        super().__init__()
        self.world, self.rank, self.size = world, rank, size
        self.bound = 0.0

    def drain(self) -> None:
        """Run everything that can run now."""
        while self.ready:
            self.ready.popleft().step()

    async def encode(self, block, carried: float = 0.0, into=None) -> SimulatedFrame:
        profile = self.world.profile
        lossy = profile.reconstruct < inf
        settled = lossy and into is not None and profile.reconstruct > 0
        frame = SimulatedFrame(block, carried + (1.0 if lossy else 0.0), profile.ratio, settled)
        speed = profile.reconstruct if settled else profile.encode
        await self._busy(block.nbytes, speed, block.nbytes + frame.nbytes)
        if settled and isinstance(into, np.ndarray):
            into[...] = frame.values
        return frame

    async def decode(self, frame: SimulatedFrame, into) -> None:
        await self._busy(into.nbytes, self.world.profile.decode, frame.nbytes + into.nbytes)
        if frame.values is not None:
            into[...] = frame.values

    async def decode_add(self, frame: SimulatedFrame, into) -> None:
        await self._busy(into.nbytes, self.world.profile.decode, frame.nbytes + 2 * into.nbytes, into.nbytes)
        if frame.values is not None:
            into += frame.values

    async def add(self, frame: SimulatedFrame, other: SimulatedFrame, like) -> SimulatedFrame:
        await self._busy(like.nbytes, self.world.profile.decode, 3 * frame.nbytes)
        both = SimulatedFrame(like, frame.bound + other.bound, self.world.profile.ratio)
        if frame.values is not None:
            both.values = frame.values + other.values
        return both

    def send(self, frame: SimulatedFrame, dest: int, tag: int = 0) -> Future:
        return self.world.transmit(self, frame, dest, tag)

    def recv(self, source: int, like, tag: int = 0) -> Future:
        return self.world.expect(self, source, tag)

    async def copy(self, block, into) -> None:
        if block is into:
            return
        await self._move(2 * into.nbytes)
        if isinstance(into, np.ndarray):
            into[...] = block

    def accumulator(self, block, into=None):
        return block.copy() if isinstance(block, np.ndarray) else block

    async def round(self, accumulator, into, error: float) -> None:
        # Sums are formed where they belong; what it took to bring the first term there is counted here.
        await self._move(2 * into.nbytes)
        if isinstance(into, np.ndarray):
            into[...] = accumulator

    def n_chunks(self, block) -> int:
        return -(-block.nbytes // self.world.profile.chunk_nbytes)

    async def _move(self, nbytes: int) -> None:
        """Read and write so many bytes together, where that takes time."""
        if self.world.profile.memory < inf:
            await self._busy(0, inf, nbytes)

    async def _busy(self, nbytes: int, speed: float, moved: int, read: int = 0) -> None:
        """Code ``nbytes``, which takes ``moved`` bytes to and from memory, and wait for ``read`` of them."""
        world, profile = self.world, self.world.profile
        # What is read next is fetched while this is coded.
        seconds = max(nbytes / speed, moved / profile.memory) + read / profile.memory + profile.call
        if not seconds:
            return
        workers = range(max(profile.workers, 1))
        worker = min(workers, key=lambda i: world._free["cpu", self.rank, i])
        future = Future()
        world.at(world.work(self.rank, seconds, worker), lambda: world.finish(self, future))
        await future


def simulate(size: int, algorithm: Callable[[SimulatedRuntime], Coroutine], profile: Profile) -> float:
    """Seconds that an algorithm takes on ``size`` ranks of a profile."""
    return World(size, profile).run(algorithm)
