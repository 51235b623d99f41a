"""Two levels: nodes with many ranks, behind one port each.

Inside a node memory is fast and sums are plain; between nodes every value travels once, coded. Each node has
as many *leaders* as its smallest sibling has ranks, and leader i of every node exchanges with leader i of all
others by the algorithms of one level (Karonis et al., "Exploiting hierarchy in parallel computer networks",
2000; the leaders as in Jain et al., "Framework for scalable intra-node collective operations", 2018), so that
coding is shared out. A frame that comes through the port goes on to the ranks of the node as it is, and each
decodes it into its own buffer. Errors grow with nodes, not with ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from compcoll.algorithms.allgather import recursive_doubling_allgather, ring_column
from compcoll.algorithms.cut import cut

__all__ = ["Placement", "allgather", "allreduce", "bcast", "placement", "receive", "reduce", "reduce_scatter"]


class Placement:
    """Ranks on their nodes.

    Attributes
    ----------
    members : list of list of int
        The ranks of each node, in order; nodes in the order of their first ranks.
    node, place : list of int
        Of each rank: its node, and where it stands among that node's.
    width : int
        Leaders of each node: ranks of the smallest.
    turns : int
        Ranks of a node that a leader stands for, at most.
    """

    def __init__(self, nodes: tuple[int, ...]):
        found: dict[int, list[int]] = {}
        for rank, node in enumerate(nodes):
            found.setdefault(node, []).append(rank)
        self.members = list(found.values())
        self.width = min(map(len, self.members))
        self.turns = -(-max(map(len, self.members)) // self.width)
        numbers = {node: i for i, node in enumerate(found)}
        self.node = [numbers[node] for node in nodes]
        self.place = [self.members[self.node[rank]].index(rank) for rank in range(len(nodes))]

    def mates(self, rank: int) -> list[int]:
        """The other ranks of a rank's node, the next one first."""
        near, place = self.members[self.node[rank]], self.place[rank]
        return near[place + 1 :] + near[:place]

    def leaders(self, part: int) -> list[int]:
        """Leader ``part`` of every node."""
        return [near[part] for near in self.members]

    def served(self, part: int, turn: int) -> list[int | None]:
        """The rank of each node for which leader ``part`` stands at a turn; None where there is none."""
        at = part + turn * self.width
        return [near[at] if at < len(near) else None for near in self.members]


@lru_cache(maxsize=64)
def placement(nodes: tuple[int, ...]) -> Placement:
    """The placement of ranks, given the node of each."""
    return Placement(nodes)


class Equals:
    """The verbs among leaders, one of each node: its ranks are nodes.

    Parameters
    ----------
    rt : Tracer
    leaders : list of int
    turn, turns : int
        Messages of several turns between two leaders have tags of their own.
    """

    def __init__(self, rt: Any, leaders: list[int], turn: int = 0, turns: int = 1):
        self._rt, self._leaders, self._turn, self._turns = rt, leaders, turn, turns
        self.rank, self.size = leaders.index(rt.rank), len(leaders)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rt, name)

    def send(self, frame: int, dest: int, tag: int = 0) -> Any:
        return self._rt.send(frame, self._leaders[dest], tag * self._turns + self._turn)

    def recv(self, source: int, like: Any, tag: int = 0) -> Any:
        return self._rt.recv(self._leaders[source], like, tag * self._turns + self._turn)


class Sharing(Equals):
    """`Equals` that pass on to their nodes what they decode.

    Parameters
    ----------
    tags : dict
        The tag of each chunk inside the node.
    """

    def __init__(self, rt: Any, leaders: list[int], tags: dict[Any, int], turn: int = 0, turns: int = 1):
        super().__init__(rt, leaders, turn, turns)
        self._tags, self._mates = tags, placement(rt.nodes).mates(rt.rank)

    async def decode(self, frame: int, into: Any) -> None:
        self.share(frame, into)
        await self._rt.decode(frame, into)

    async def settle(self, frame: int, block: Any, into: Any) -> None:
        self.share(frame, into)
        await self._rt.settle(frame, block, into)

    def share(self, frame: int, chunk: Any) -> None:
        """Send the frame of a chunk to the other ranks of this node."""
        for mate in self._mates:
            self._rt.send(frame, mate, self._tags[chunk])


async def receive(rt, source: int, chunks: list[tuple[Any, int]]) -> None:
    """Decode chunks, each with its tag, that another rank sends."""

    async def one(chunk, tag: int) -> None:
        await rt.decode(await rt.recv(source, chunk, tag), chunk)

    await rt.all(one(chunk, tag) for chunk, tag in chunks)


async def _contribute(rt, leader: int, chunks: list[tuple[Any, int]]) -> None:
    """Send chunks, each with its tag, to a leader of this node, which adds them."""

    async def one(chunk, tag: int) -> None:
        await rt.send(await rt.encode(chunk, inside=True), leader, tag)

    await rt.all(one(chunk, tag) for chunk, tag in chunks)


async def _node_sums(rt, chunks: list, tags: list[int]) -> list:
    """This node's sums of some chunks, each with the tag of its contributions; None stays None."""
    mates = placement(rt.nodes).mates(rt.rank)
    sums = list(chunks)

    async def one(i: int, chunk, tag: int) -> None:
        arriving = [rt.recv(mate, chunk, tag) for mate in mates]
        total = rt.accumulator(chunk)
        await rt.copy(chunk, total, idle=True)
        for future in arriving:
            await rt.decode_add(await future, total)
        sums[i] = total

    some = [(i, chunk) for i, chunk in enumerate(chunks) if chunk is not None]
    if mates:
        await rt.all(one(i, chunk, tags[i]) for i, chunk in some)
    return sums


def _in_ring_order(rt, column: list) -> Iterator[tuple[int, Any]]:
    """The chunks of a column with their nodes, in the order in which a ring brings them to this one."""
    node = placement(rt.nodes).node[rt.rank]
    for hop in range(len(column)):
        at = (node - hop) % len(column)
        if column[at] is not None:
            yield at, column[at]


def _cut(rt, block, at: Placement) -> list[list]:
    """A block in a part for each leader, each in a piece for each node, each in chunks: columns by part."""
    found = []
    for part in cut(block, at.width, block.unit):
        pieces = cut(part, len(at.members), block.unit)
        found.append(list(zip_longest(*map(rt.chunks, pieces))))
    return found


# Contributions inside a node have even tags, and results odd ones: both may go from one rank to another.


async def allreduce(rt, send, recv, column_sum) -> None:
    """The sum over ranks of ``send`` arrives as ``recv`` everywhere."""
    at = placement(rt.nodes)
    sources, targets = _cut(rt, send, at), _cut(rt, recv, at)
    node, n = at.node[rt.rank], len(at.members)
    near = at.members[node]

    async def lead(part: int, c: int) -> None:
        target = targets[part][c]
        column = await _node_sums(rt, sources[part][c], [2 * (c * n + k) for k in range(n)])
        leaders = at.leaders(part)
        total, frame = await column_sum(Equals(rt, leaders), column, target[node], c)
        if total is not None:
            await rt.round(total, target[node])
        tags = {chunk: 2 * (c * n + k) + 1 for k, chunk in enumerate(target)}
        sharing = Sharing(rt, leaders, tags)
        if frame is not None:  # which nobody settles
            sharing.share(frame, target[node])
        await ring_column(sharing, target[node], target, c, frame)

    async def follow(part: int, c: int) -> None:
        some = [(chunk, 2 * (c * n + k)) for k, chunk in enumerate(sources[part][c]) if chunk is not None]
        await _contribute(rt, near[part], some)
        results = [(chunk, 2 * (c * n + k) + 1) for k, chunk in _in_ring_order(rt, targets[part][c])]
        await receive(rt, near[part], results)

    await _each_part(rt, at, [len(columns) for columns in sources], lead, follow)


async def _each_part(rt, at: Placement, lengths: list[int], lead, follow, after=None) -> None:
    """Run the columns of all parts, each as its leader or as another rank of the node."""
    place = at.place[rt.rank]

    async def one(c: int) -> None:
        parts = [(place + i) % at.width for i in range(1, at.width + 1)]
        some = [part for part in parts if c < lengths[part]]
        await rt.all([(lead if part == place else follow)(part, c) for part in some], at.width)
        if after is not None:
            await after(c)

    await rt.all(one(c) for c in range(max(lengths)))


async def reduce(rt, send, recv, root: int, column_sum) -> None:
    """The sum over ranks of ``send`` arrives as ``recv`` at the root."""
    at = placement(rt.nodes)
    sources = _cut(rt, send, at)
    targets = _cut(rt, recv, at) if rt.rank == root else None
    node, n = at.node[rt.rank], len(at.members)
    own: dict[int, Any] = {}

    async def lead(part: int, c: int) -> None:
        column = await _node_sums(rt, sources[part][c], [2 * (c * n + k) for k in range(n)])
        into = targets[part][c][node] if targets else None
        total, frame = await column_sum(Equals(rt, at.leaders(part)), column, into, c)
        if rt.rank == root:
            own[c] = total
        elif total is not None:
            if frame is None:
                frame = await rt.encode(await rt.rounded(total), inside=rt.is_near(root))
            await rt.send(frame, root, 2 * (len(sources[part]) * n + c) + 1)

    async def follow(part: int, c: int) -> None:
        some = [(chunk, 2 * (c * n + k)) for k, chunk in enumerate(sources[part][c]) if chunk is not None]
        await _contribute(rt, at.members[node][part], some)

    async def collect(c: int) -> None:
        async def one(source: int, chunk, tag: int) -> None:
            if source != root:
                await rt.decode(await rt.recv(source, chunk, tag), chunk)
            elif own[c] is not None:
                await rt.round(own[c], chunk)

        await rt.all(
            one(at.members[k][part], chunk, 2 * (len(columns) * n + c) + 1)
            for part, columns in enumerate(targets or ())
            if c < len(columns)
            for k, chunk in enumerate(columns[c])
            if chunk is not None
        )

    lengths = [len(columns) for columns in sources]
    await _each_part(rt, at, lengths, lead, follow, collect if rt.rank == root else None)


async def reduce_scatter(rt, send: list, into, column_sum) -> None:
    """The sum over ranks of ``send[rank]`` arrives as ``into``."""
    at = placement(rt.nodes)
    node, place, n = at.node[rt.rank], at.place[rt.rank], len(at.members)
    chunks = [rt.chunks(block) for block in send]
    outs = rt.chunks(into)

    def column(part: int, turn: int, c: int) -> list:
        return [chunks[d][c] if d is not None and c < len(chunks[d]) else None for d in at.served(part, turn)]

    def tag(turn: int, c: int, k: int) -> int:
        return 2 * ((c * at.turns + turn) * n + k)

    async def lead(part: int, turn: int, c: int) -> None:
        sums = await _node_sums(rt, column(part, turn, c), [tag(turn, c, k) for k in range(n)])
        dest = at.served(part, turn)[node]
        mine = dest == rt.rank and c < len(outs)
        equals = Equals(rt, at.leaders(part), turn, at.turns)
        total, _ = await column_sum(equals, sums, outs[c] if mine else None, c)
        if total is None:
            return
        if mine:
            await rt.round(total, outs[c])
        else:
            await rt.send(await rt.encode(await rt.rounded(total), inside=True), dest, 2 * c + 1)

    async def follow(part: int, turn: int, c: int) -> None:
        leader = at.members[node][part]
        some = [
            (chunk, tag(turn, c, k)) for k, chunk in enumerate(column(part, turn, c)) if chunk is not None
        ]
        await _contribute(rt, leader, some)
        if at.served(part, turn)[node] == rt.rank and c < len(outs):
            await receive(rt, leader, [(outs[c], 2 * c + 1)])

    async def one(c: int) -> None:
        for turn in range(at.turns):
            parts = [(place + i) % at.width for i in range(1, at.width + 1)]
            await rt.all([(lead if part == place else follow)(part, turn, c) for part in parts], at.width)

    await rt.all(one(c) for c in range(max(map(len, chunks))))


async def allgather(rt, mine, blocks: list, algorithm: str) -> None:
    """``mine`` arrives as ``blocks[rank]`` of every rank."""
    at = placement(rt.nodes)
    node, place = at.node[rt.rank], at.place[rt.rank]
    chunks = [rt.chunks(block) for block in blocks]
    own = rt.chunks(mine)
    tags = {  # of what a rank of this node passes on: its own chunks, and as a leader those of other nodes
        chunk: (c * at.turns + at.place[p] // at.width) * len(at.members) + at.node[p]
        for p, some in enumerate(chunks)
        for c, chunk in enumerate(some)
    }
    doubling = algorithm == "recursive_doubling" and len(set(map(len, at.members))) == 1

    def column(part: int, turn: int, c: int) -> list:
        return [chunks[d][c] if d is not None and c < len(chunks[d]) else None for d in at.served(part, turn)]

    async def lead(part: int, turn: int, c: int) -> None:
        some, owner = column(part, turn, c), at.served(part, turn)[node]
        sharing, frame = Sharing(rt, at.leaders(part), tags, turn, at.turns), None
        source = some[node]
        if source is not None and owner != rt.rank:
            frame = await rt.recv(owner, source, tags[source])
            rt.start(rt.decode(frame, source))
        elif source is not None:
            source = own[c]
        await ring_column(sharing, source, some, c, frame)

    async def follow(part: int, turn: int, c: int) -> None:
        leader, some = at.members[node][part], column(part, turn, c)
        owner = at.served(part, turn)[node]
        if some[node] is not None and owner == rt.rank:
            await share(c)
        elif some[node] is not None:
            rt.start(receive(rt, owner, [(some[node], tags[some[node]])]))
        some[node] = None
        await receive(rt, leader, [(chunk, tags[chunk]) for _, chunk in _in_ring_order(rt, some)])

    async def share(c: int) -> None:
        """Give the own chunk to the node, of which a leader passes it on."""
        into = chunks[rt.rank][c]
        frame = await rt.encode(own[c], into)
        rt.start(rt.settle(frame, own[c], into))
        for mate in at.mates(rt.rank):
            rt.send(frame, mate, tags[into])

    async def one(c: int) -> None:
        for turn in range(at.turns):
            parts = [(place + i) % at.width for i in range(int(doubling), at.width)]
            roles = [(lead if part == place else follow)(part, turn, c) for part in parts]
            await rt.all(roles, at.width)

    if doubling:
        sharing = Sharing(rt, at.leaders(place), tags)
        rt.start(recursive_doubling_allgather(sharing, mine, [blocks[d] for d in at.leaders(place)]))
    await rt.all(one(c) for c in range(max(map(len, chunks))))


async def bcast(rt, block, root: int, pipeline) -> None:
    """``block`` of the root arrives as ``block`` of every rank, of each node through one of its ranks."""
    at = placement(rt.nodes)
    leaders = at.leaders(0)
    leaders[at.node[root]] = root
    tags = {chunk: c for c, chunk in enumerate(rt.chunks(block))}
    if rt.rank in leaders:
        await pipeline(Sharing(rt, leaders, tags), block, at.node[root])
    else:
        await receive(rt, leaders[at.node[rt.rank]], list(tags.items()))
