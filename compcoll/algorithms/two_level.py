"""Two levels: nodes with many ranks, behind one port each.

Inside a node memory is fast and sums are plain; between nodes every value is sent once, coded. Each node has
as many *leaders* as the smallest node has ranks. Leader i of every node exchanges with leader i of all others
by the algorithms of one level (Karonis et al., "Exploiting hierarchy in parallel computer networks", 2000;
the leaders as in Jain et al., "Framework for scalable intra-node collective operations", 2018), so that the
leaders share the work of coding. The leader that receives a frame through the port decodes it once, and the
other ranks of the node copy its values. Errors grow with nodes, not with ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from itertools import zip_longest
from typing import Any

from compcoll.algorithms.allgather import recursive_doubling_allgather, ring_column
from compcoll.algorithms.cut import cut
from compcoll.algorithms.groups import Placement, Subgroup, placement
from compcoll.schedule.runtime import Runtime

__all__ = [
    "Sharing",
    "allgather",
    "allreduce",
    "bcast",
    "deliver",
    "node_sums",
    "receive",
    "reduce",
    "reduce_scatter",
]


class Sharing(Subgroup):
    """A runtime for leaders, which pass decoded values on to their nodes.

    Parameters
    ----------
    peers : list of int
        The other ranks of this rank's node.
    tags : dict
        The tag of each chunk inside the node.
    """

    def __init__(
        self,
        rt: Any,
        leaders: list[int],
        peers: list[int],
        tags: dict[Any, int],
        turn: int = 0,
        turns: int = 1,
    ):
        super().__init__(rt, leaders, turn, turns)
        self._peers, self._tags = peers, tags

    async def decode(self, frame: int, into: Any) -> None:
        if self.inside_exact:
            await self._rt.decode(frame, into)
            await self.share(frame, into)
        else:
            await self.share(frame, into)
            await self._rt.decode(frame, into)

    async def write_decoded(self, frame: int, block: Any, into: Any, idle: bool = True) -> None:
        if self.owner_exact or not self.inside_exact or not self._peers:
            self._send(frame, into)  # the node's other ranks get the values that other nodes decode
            await self._rt.write_decoded(frame, block, into)
        else:
            await self._rt.write_decoded(frame, block, into, idle=False)
            await self.share(frame, into)

    async def share(self, frame: Any, chunk: Any) -> None:
        """Give the values of a chunk, or its frame if they would change, to this node's other ranks."""
        if self._peers:
            self._send(await self._rt.encode(chunk, inside=True) if self.inside_exact else frame, chunk)

    def _send(self, frame: int, chunk: Any) -> None:
        for peer in self._peers:
            self._rt.send(frame, peer, self._tags[chunk])


async def receive(rt: Runtime, source: int, chunks: list[tuple[Any, int]]) -> None:
    """Decode chunks, each with its tag, that another rank sends."""

    async def one(chunk, tag: int) -> None:
        await rt.decode(await rt.recv(source, chunk, tag), chunk)

    await rt.all(one(chunk, tag) for chunk, tag in chunks)


async def deliver(rt: Runtime, dest: int, chunks: list[tuple[Any, int]]) -> None:
    """Send chunks, each with its tag, to another rank."""

    async def one(chunk, tag: int) -> None:
        await rt.send(await rt.encode(chunk, inside=rt.on_same_node(dest)), dest, tag)

    await rt.all(one(chunk, tag) for chunk, tag in chunks)


async def node_sums(rt: Runtime, peers: list[int], chunks: list, tags: list[int], into: Any = None) -> list:
    """This node's sums of some chunks, each with the tag of its contributions; None stays None.

    ``into``: memory for each, else it is found.
    """
    sums = list(chunks)

    async def one(i: int, chunk, tag: int) -> None:
        arriving = [rt.recv(peer, chunk, tag) for peer in peers]
        total = rt.accumulator(chunk, into and into[i])
        await rt.copy(chunk, total, idle=True)
        for future in arriving:
            await rt.decode_add(await future, total)
        sums[i] = total

    some = [(i, chunk) for i, chunk in enumerate(chunks) if chunk is not None]
    if peers:
        await rt.all(one(i, chunk, tags[i]) for i, chunk in some)
    return sums


def _in_ring_order(rt: Runtime, column: list) -> Iterator[tuple[int, Any]]:
    """The chunks of a column with their nodes, in the order in which a ring delivers them to this node."""
    node = placement(rt.nodes).node[rt.rank]
    for hop in range(len(column)):
        at = (node - hop) % len(column)
        if column[at] is not None:
            yield at, column[at]


def _cut(rt: Runtime, block, at: Placement) -> list[list]:
    """Cut a block into a part for each leader, a piece for each node, and chunks: columns by part."""
    found = []
    for part in cut(block, at.width, block.unit):
        pieces = cut(part, len(at.members), block.unit)
        found.append(list(zip_longest(*map(rt.chunks, pieces))))
    return found


# Contributions inside a node have even tags, and results odd ones: both may go from one rank to another.


async def allreduce(rt: Runtime, send, recv, column_sum) -> None:
    """Sum ``send`` over ranks into ``recv`` of all."""
    at = placement(rt.nodes)
    sources, targets = _cut(rt, send, at), _cut(rt, recv, at)
    node, n, peers = at.node[rt.rank], len(at.members), at.node_peers(rt.rank)
    own_node = at.members[node]

    async def lead(part: int, c: int) -> None:
        target = targets[part][c]
        column = await node_sums(rt, peers, sources[part][c], [2 * (c * n + k) for k in range(n)])
        leaders = at.leaders(part)
        total, frame = await column_sum(Subgroup(rt, leaders), column, target[node], c)
        if total is not None:
            await rt.round(total, target[node])
        tags = {chunk: 2 * (c * n + k) + 1 for k, chunk in enumerate(target)}
        sharing = Sharing(rt, leaders, peers, tags)
        if frame is not None:  # no `write_decoded` shares this frame
            rt.start(sharing.share(frame, target[node]))
        await ring_column(sharing, target[node], target, c, frame)

    async def follow(part: int, c: int) -> None:
        some = [(chunk, 2 * (c * n + k)) for k, chunk in enumerate(sources[part][c]) if chunk is not None]
        await deliver(rt, own_node[part], some)
        results = [(chunk, 2 * (c * n + k) + 1) for k, chunk in _in_ring_order(rt, targets[part][c])]
        await receive(rt, own_node[part], results)

    await _each_part(rt, at, [len(columns) for columns in sources], lead, follow)


def _columns(rt: Runtime, n_tags: int) -> int:
    """Columns that may be in flight at once, each with its own tags."""
    return max(1, min(8, rt.n_tags // n_tags))


async def _each_part(rt: Runtime, at: Placement, lengths: list[int], lead, follow, after=None) -> None:
    """Run the columns of all parts, each as its leader or as another rank of the node."""
    place = at.place[rt.rank]

    async def one(c: int) -> None:
        parts = [(place + i) % at.width for i in range(1, at.width + 1)]
        some = [part for part in parts if c < lengths[part]]
        await rt.all([(lead if part == place else follow)(part, c) for part in some], at.width)
        if after is not None:
            await after(c)

    await rt.all((one(c) for c in range(max(lengths))), _columns(rt, 2 * len(at.members)))


async def reduce(rt: Runtime, send, recv, root: int, column_sum) -> None:
    """Sum ``send`` over ranks into ``recv`` of the root."""
    at = placement(rt.nodes)
    sources = _cut(rt, send, at)
    targets = _cut(rt, recv, at) if rt.rank == root else None
    node, n, peers = at.node[rt.rank], len(at.members), at.node_peers(rt.rank)
    own: dict[int, Any] = {}

    async def lead(part: int, c: int) -> None:
        column = await node_sums(rt, peers, sources[part][c], [2 * (c * n + k) for k in range(n)])
        into = targets[part][c][node] if targets else None
        total, frame = await column_sum(Subgroup(rt, at.leaders(part)), column, into, c)
        if rt.rank == root:
            own[c] = total
        elif total is not None:
            if frame is None:
                frame = await rt.encode(await rt.rounded(total), inside=rt.on_same_node(root))
            await rt.send(frame, root, 2 * (len(sources[part]) * n + c) + 1)

    async def follow(part: int, c: int) -> None:
        some = [(chunk, 2 * (c * n + k)) for k, chunk in enumerate(sources[part][c]) if chunk is not None]
        await deliver(rt, at.members[node][part], some)

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


async def reduce_scatter(rt: Runtime, send: list, into, column_sum) -> None:
    """Sum ``send[rank]`` over ranks into ``into``."""
    at = placement(rt.nodes)
    node, place, n = at.node[rt.rank], at.place[rt.rank], len(at.members)
    peers, outs = at.node_peers(rt.rank), rt.chunks(into)
    chunks = [rt.chunks(block) for block in send]

    def column(part: int, turn: int, c: int) -> list:
        return [chunks[d][c] if d is not None and c < len(chunks[d]) else None for d in at.served(part, turn)]

    def tag(turn: int, c: int, k: int) -> int:
        return 2 * ((c * at.turns + turn) * n + k)

    async def lead(part: int, turn: int, c: int) -> None:
        sums = await node_sums(rt, peers, column(part, turn, c), [tag(turn, c, k) for k in range(n)])
        dest = at.served(part, turn)[node]
        mine = dest == rt.rank and c < len(outs)
        equals = Subgroup(rt, at.leaders(part), turn, at.turns)
        total, _ = await column_sum(equals, sums, outs[c] if mine else None, c)
        if total is None:
            return
        if mine:
            await rt.round(total, outs[c])
        elif dest is not None:
            await rt.send(await rt.encode(await rt.rounded(total), inside=True), dest, 2 * c + 1)

    async def follow(part: int, turn: int, c: int) -> None:
        leader = at.members[node][part]
        some = [
            (chunk, tag(turn, c, k)) for k, chunk in enumerate(column(part, turn, c)) if chunk is not None
        ]
        await deliver(rt, leader, some)
        if at.served(part, turn)[node] == rt.rank and c < len(outs):
            await receive(rt, leader, [(outs[c], 2 * c + 1)])

    async def one(c: int) -> None:
        for turn in range(at.turns):
            parts = [(place + i) % at.width for i in range(1, at.width + 1)]
            await rt.all([(lead if part == place else follow)(part, turn, c) for part in parts], at.width)

    columns = _columns(rt, 2 * at.turns * n)
    await rt.all((one(c) for c in range(max(map(len, chunks)))), columns)


#: How ranks with the same index on all nodes exchange their own blocks, if nodes have equally many ranks.
#: None: as a ring, chunk by chunk, as on uneven nodes.
_AMONG_LEADERS: dict[str, Callable[..., Coroutine] | None] = {
    "ring": None,
    "recursive_doubling": recursive_doubling_allgather,
}


async def allgather(rt: Runtime, mine, blocks: list, algorithm: str) -> None:
    """Give every rank ``mine`` as its ``blocks[rank]``."""
    at = placement(rt.nodes)
    node, place, peers = at.node[rt.rank], at.place[rt.rank], at.node_peers(rt.rank)
    chunks = [rt.chunks(block) for block in blocks]
    own = rt.chunks(mine)
    tags = {  # of chunks that a rank of this node passes on: its own, and as a leader those of other nodes
        chunk: (c * at.turns + at.place[p] // at.width) * len(at.members) + at.node[p]
        for p, some in enumerate(chunks)
        for c, chunk in enumerate(some)
    }
    even = len(set(map(len, at.members))) == 1
    direct = _AMONG_LEADERS[algorithm] if even else None

    def column(part: int, turn: int, c: int) -> list:
        return [chunks[d][c] if d is not None and c < len(chunks[d]) else None for d in at.served(part, turn)]

    async def lead(part: int, turn: int, c: int) -> None:
        some, owner = column(part, turn, c), at.served(part, turn)[node]
        sharing, frame = Sharing(rt, at.leaders(part), peers, tags, turn, at.turns), None
        source = some[node]
        if source is not None and owner is not None and owner != rt.rank:
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
        elif some[node] is not None and owner is not None:
            rt.start(receive(rt, owner, [(some[node], tags[some[node]])]))
        some[node] = None
        await receive(rt, leader, [(chunk, tags[chunk]) for _, chunk in _in_ring_order(rt, some)])

    async def share(c: int) -> None:
        """Give the own chunk to the node; a leader passes it on."""
        into = chunks[rt.rank][c]
        frame = await rt.encode(own[c], into)
        rt.start(rt.write_decoded(frame, own[c], into))
        for peer in peers:
            rt.send(frame, peer, tags[into])

    async def one(c: int) -> None:
        for turn in range(at.turns):
            parts = [(place + i) % at.width for i in range(int(direct is not None), at.width)]
            roles = [(lead if part == place else follow)(part, turn, c) for part in parts]
            await rt.all(roles, at.width)

    if direct is not None:
        sharing = Sharing(rt, at.leaders(place), peers, tags)
        rt.start(direct(sharing, mine, [blocks[d] for d in at.leaders(place)]))
    columns = _columns(rt, at.turns * len(at.members))
    await rt.all((one(c) for c in range(max(map(len, chunks)))), columns)


async def bcast(rt: Runtime, block, root: int, pipeline) -> None:
    """Give every rank the root's ``block``; one rank of each node receives it and shares it."""
    at = placement(rt.nodes)
    leaders = at.leaders(0)
    leaders[at.node[root]] = root
    tags = {chunk: c for c, chunk in enumerate(rt.chunks(block))}
    if rt.rank in leaders:
        await pipeline(Sharing(rt, leaders, at.node_peers(rt.rank), tags), block, at.node[root])
    else:
        await receive(rt, leaders[at.node[rt.rank]], list(tags.items()))
