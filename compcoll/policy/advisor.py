"""Decisions of ``auto`` and ``pays`` on one communicator, by trials that its ranks make together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import inf, log2
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.codecs.speed import (
    CodecSpeed,
    careful_speed,
    coding_of,
    measure_speed,
    message_seconds,
    rank_nbytes,
    wire_nbytes,
)
from compcoll.core import environment
from compcoll.core._cpu import TrialWindow
from compcoll.core.exchange import bcast_object
from compcoll.core.version import VERSION
from compcoll.engine import _engine
from compcoll.engine.finalize import before_finalize
from compcoll.engine.group import Facts, complete, make_private
from compcoll.policy.decision import Decision
from compcoll.policy.link import byte_seconds
from compcoll.policy.pairs import MOST_SPREAD, Figures, Known
from compcoll.policy.table import About, Begun, Row, RowKind, Rows, half_octave, store
from compcoll.policy.trial import ENDLESS, Kind

__all__ = ["Advisor", "Measured", "measure"]

#: Largest promised time, relative to plain MPI's, at which untried calls are compressed: figures err, and a
#: loss is worse than a missed gain.
CAREFUL = 0.85
#: Bytes of a rank from which nonblocking and persistent calls go as blocking ones do: for smaller ones coding
#: takes too much time from the computation.
BESIDE_NBYTES = 4 << 20
_NO_ROW = Known(False, source="COMPCOLL_TABLE = read, and the table has no row of the kind")
#: Environment variables by which MPI libraries choose their transport.
_TRANSPORT = ("UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "MPICH_NETMOD", "OMPI_MCA_pml", "OMPI_MCA_btl")
# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD
#: Source of this process's trials in the table; `compcoll tune` sets its own name.
made_by = "trial"
#: Seconds per byte on links that this process has measured, by `Facts.link`.
_links: dict[str, float] = {}


@dataclass(frozen=True)
class Measured:
    """Measurements that all ranks of a communicator know when it has been made."""

    byte: float  # seconds that one takes on the slowest link; 0 where it was not measured
    about: About | None  # names the table of its trials; None if they are not kept
    link: str  # as of `Facts`
    rows: Rows = field(default_factory=Rows)  # of earlier trials on such machines
    frozen: bool = False  # whether calls go by rows alone, without a trial

    def on(self, facts: Facts) -> Measured:
        """Find the facts for some of the ranks, which have such a link."""
        return self if facts.link == self.link else Measured(0.0, None, facts.link, frozen=self.frozen)


def measure(comm: MPI.Intracomm, facts: Facts) -> Measured:
    """Measure the link of a communicator unless this process did so, and read rank 0's table; collective."""
    with _engine.plain_calls():
        byte = bcast_object(comm, _links.get(facts.link))
        if byte is None and comm.size > 1:
            nodes = facts.nodes or (0,) * comm.size
            peer = next(r for r in range(1, comm.size) if facts.link == "node" or nodes[r] != nodes[0])
            alone = make_private(comm)  # no other message is in flight on it
            byte = byte_seconds(alone, peer)
            alone.Free()
        _links[facts.link] = byte = byte or 0.0
        abouts = _abouts(facts, byte)
        found: Any = None
        if comm.rank == 0:
            rows = next((rows for rows in map(store().found, abouts) if rows.all or rows.begun), Rows())
            found = rows, environment.table() == "read"
        rows, frozen = bcast_object(comm, found)
    return Measured(byte, abouts[0], facts.link, rows, frozen)


def _abouts(facts: Facts, byte: float) -> list[About]:
    """The names of the table of a communicator, and of one next to it where a link is between two classes."""
    exact = log2(1e-6 / byte) if byte > 0 else 0.0
    classes = dict.fromkeys(round(exact + shift) for shift in (0, -0.25, 0.25))
    cores = facts.workers + 1.0 if facts.sharing <= 1 else round(1 / facts.sharing, 2)
    name, version = MPI.get_vendor()
    return [
        About(
            VERSION,
            f"{name} {'.'.join(map(str, version))}",
            " ".join(f"{key}={os.environ[key]}" for key in _TRANSPORT if key in os.environ),
            facts.processors,
            cores,
            "gpu" if facts.gpus else "host",
            one,
        )
        for one in classes
    ]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M+00:00")


class Advisor:
    """Decisions of one communicator.

    The first calls of a kind are plain, then some go each way, and the times of the slowest rank decide; the
    ranks agree on these by a small Allreduce. Nonblocking and persistent calls do not synchronize ranks:
    large ones go as blocking ones of their kind. Messages, and kinds without a trial, are decided by figures
    that all ranks share.
    """

    def __init__(self, comm: MPI.Intracomm, facts: Facts, measured: Measured):
        self.comm, self.facts, self.measured = comm, facts, measured
        self._kinds: dict[tuple, Kind] = {}
        #: Kind of the last blocking call.
        self.last: Kind | None = None
        self._ranks_a_node = tuple(Counter(facts.nodes or (0,) * comm.size).values())

    def decide(
        self,
        op: str,
        dtype: np.dtype,
        nbytes: int,
        decision: Decision,
        sample: np.ndarray | None,
        began: float,
    ) -> tuple[Decision, TrialWindow | None]:
        """Complete a policy's decision on a blocking collective; collective where a block has ended.

        ``nbytes`` are those of the largest message, of real numbers of ``dtype``. ``sample`` has values that
        this rank sends, if it sends any, and the call ``began`` then. The window is the block for whose calls
        the decision holds; None: for all.
        """
        if self.measured.frozen:
            known = self._find_row(op, dtype, nbytes, decision) or _NO_ROW
            return self._chosen(decision, known.compress, known.reason), None
        key = self._key(op, dtype, nbytes, decision)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._new(op, dtype, nbytes, decision)
        elif kind.is_over:
            with _engine.kept_back():  # an exception here would be one of this rank alone
                kind.go_on(began, self._agree, lambda: self._speed(decision, sample))
        self.last = kind
        window = kind.window if kind.window.most < ENDLESS else None
        return self._chosen(decision, kind.compress, kind.reason), window

    def decide_beside(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Decision:
        """Complete a policy's decision on a nonblocking or persistent collective; local."""
        whole = rank_nbytes(op, nbytes, self.comm.size)
        if whole < BESIDE_NBYTES:
            reason = (
                f"nonblocking and persistent calls below {BESIDE_NBYTES >> 20} MiB a rank are plain MPI's"
            )
            return self._chosen(decision, False, reason)
        kind = self._kinds.get(self._key(op, dtype, nbytes, decision))
        known = kind.known if kind is not None else None
        known = known or self._find_row(op, dtype, nbytes, decision)
        if known is None and not self.measured.frozen:
            return self._by_figures(dtype, whole, decision, self.facts.ranks_per_node)
        known = known or _NO_ROW
        return self._chosen(decision, known.compress, known.reason)

    def decide_message(self, dtype: np.dtype, nbytes: int, decision: Decision) -> Decision:
        """Complete a policy's decision on a message between two ranks; local, and equal on both."""
        return self._by_figures(dtype, nbytes, decision, 1)

    # -- kinds

    @staticmethod
    def _key(op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> tuple:
        # The chunks of a policy follow the exact size.
        return op, dtype, half_octave(nbytes), replace(decision, chunk_nbytes=0)

    def _new(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Kind:
        coding = coding_of(op, nbytes, self.comm.size, self.facts.workers + 1)
        wire = self.measured.byte * wire_nbytes(op, nbytes, self.comm.size, self.facts.ranks_per_node)
        begun = self.measured.rows.find_begun(self._row_kind(op, dtype, decision), nbytes)
        known = None if begun else self._find_row(op, dtype, nbytes, decision)
        on_end = partial(self._keep, op, dtype, nbytes, decision)
        on_pair = partial(self._keep_pairs, op, dtype, nbytes, decision)
        return Kind(rank_nbytes(op, nbytes, self.comm.size), coding, wire, known, on_end, begun, on_pair)

    def _row_kind(self, op: str, dtype: np.dtype, decision: Decision) -> RowKind:
        assert decision.codec is not None
        return op, str(dtype), self._ranks_a_node, decision.codec.spec, decision.algorithm, decision.levels

    def _find_row(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Known | None:
        """Find the outcome of an earlier trial."""
        return self.measured.rows.find(self._row_kind(op, dtype, decision), nbytes)

    def _agree(self, figures: Sequence[float]) -> list[float]:
        found = np.array(figures, np.float64)
        request = self.comm.Iallreduce(MPI.IN_PLACE, found, MPI.MAX)
        limits = environment.timeout(), environment.notice()
        complete(self.comm, request, "agreeing on what calls took", *limits)
        return [float(x) for x in found]

    @staticmethod
    def _speed(decision: Decision, sample: np.ndarray | None) -> CodecSpeed | None:
        if made_by == "tune" or not isinstance(sample, np.ndarray) or not sample.size:
            return None  # so that a trial is made
        assert decision.codec is not None
        return measure_speed(decision.codec, sample)

    def _keep(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision, known: Known) -> None:
        """Keep the outcome of a trial for later jobs, and decide nonblocking calls again."""
        _engine.forget_calls()
        about = self.measured.about
        if about is None or _WORLD.Get_rank():
            return
        call = *self._row_kind(op, dtype, decision), nbytes
        store().end(about, Begun(*call))
        if not known.pairs[0]:
            return
        before_finalize(store().write)
        if not known.spread <= MOST_SPREAD:
            return
        if not all(0 < seconds < inf for seconds in (*known.seconds, *known.in_call)):
            return
        figures = known.compress, known.seconds, known.in_call, known.share, known.pairs
        store().add(about, Row(*call, *figures, made_by, _now()))

    def _keep_pairs(
        self, op: str, dtype: np.dtype, nbytes: int, decision: Decision, pairs: list[Figures]
    ) -> None:
        """Keep pairs of a trial for later jobs, as this one may end before the trial does."""
        about = self.measured.about
        if about is None or _WORLD.Get_rank() or made_by == "tune":
            return
        before_finalize(store().write)
        store().begin(about, Begun(*self._row_kind(op, dtype, decision), nbytes, tuple(pairs), _now()))

    # -- without a trial

    @staticmethod
    def _chosen(decision: Decision, compress: bool, reason: str) -> Decision:
        return replace(decision, codec=decision.codec if compress else None, ask=False, reason=reason)

    def _by_figures(self, dtype: np.dtype, nbytes: int, decision: Decision, sharing: int) -> Decision:
        """Decide by a message's time on a shared link and its expected ratio."""
        assert decision.codec is not None
        byte = self.measured.byte * sharing
        if not byte:
            return self._chosen(decision, False, "its link was not measured")
        speed = careful_speed(decision.codec, dtype)
        share = self.measured.rows.share(str(dtype), decision.codec.spec)
        if share is not None:
            speed = replace(speed, share=share)
        source = "assumed" if share is None else "earlier"
        chunks = nbytes / decision.chunk_nbytes
        compressed, plain = message_seconds(nbytes, byte, speed, chunks), nbytes * byte
        reason = (
            f"without a trial: {1e3 * compressed:.3g} ms expected, plain MPI {1e3 * plain:.3g} ms, by the "
            f"measured link and an {source} ratio of {1 / speed.share:.2f}; compression is used below "
            f"{CAREFUL:.2f} of plain MPI's time"
        )
        return self._chosen(decision, compressed < CAREFUL * plain, reason)
