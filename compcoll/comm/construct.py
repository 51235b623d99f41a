"""Construction of a `compcoll.Comm`: all ranks agree on its settings, then it is found or made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from random import SystemRandom

from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.comm.coding import coding
from compcoll.comm.marked import Marked
from compcoll.comm.prepare import load_kernels, prepare
from compcoll.comm.recording import record
from compcoll.core import dtypes, environment
from compcoll.devices import handover
from compcoll.engine import _engine, hooks
from compcoll.engine.group import complete, make_private, survey
from compcoll.engine.start import start_engine
from compcoll.policy import Policy
from compcoll.policy.policy import check_same, fields_of

__all__ = ["construct", "mark_group"]

#: Random source of keys, separate from generators that programs may seed.
_RANDOM = SystemRandom()
#: Seconds for which calls wait for other ranks in a comparison, if ``COMPCOLL_TIMEOUT`` is not set.
_PATIENCE = 300.0
# A program may put another communicator into its place.
_WORLD = MPI.COMM_WORLD


def construct(
    origin: MPI.Intracomm,
    make: Callable[[], Policy],
    strict: bool,
    owner_exact: bool,
    device_buffers: bool | None,
    itself: bool = False,
) -> int:
    """Agree with all ranks on a policy, find or make the duplicate with it, and return its handle.

    Every rank raises if they disagree. ``itself``: mark the communicator itself instead of a duplicate.
    """
    plain = MPI.Intracomm(origin)
    error: Exception | None = None
    agreed: dict[str, str] | str
    seconds, notice, known = inf, inf, _known_of(plain)
    threads: int | None = None
    nodes: list[int] | None = None
    shares = asked = False
    policy = Policy()
    try:
        _begin()
        start_engine()
        seconds, notice = environment.timeout(), environment.notice()
        environment.check_all()
        threads, shares = environment.threads(), environment.shared_memory()
        nodes = environment.nodes(_WORLD.Get_size())
        policy = make()
        record()
        asked = environment.device_buffers() if device_buffers is None else bool(device_buffers)
        agreed = fields_of(policy) | {
            "strict": repr(bool(strict)),
            "owner_exact": repr(bool(owner_exact)),
            "device_buffers": repr(asked),
            "name": repr(plain.Get_name() if policy.names_communicators else None),
            "COMPCOLL_CHECK": repr(environment.checks(default=False)),
            "COMPCOLL_TIMEOUT": f"{seconds:g}",
        }
    except Exception as problem:
        error, agreed = problem, f"{type(problem).__name__}: {problem}"
    _meet(plain, seconds, notice)
    mine = survey(plain, threads, nodes, shares) if known is None else None
    words = repr(agreed).encode()
    found = None if itself else _engine.find_duplicate(plain, words)
    handle, key = found or (None, None)  # a duplicate may be in an error state on only some ranks
    everyone = plain.allgather((agreed, mine, hooks.watched, key, _RANDOM.getrandbits(64)))
    if error is not None:
        raise error
    check_same([theirs for theirs, *_ in everyone], plain.rank)
    if handle is not None and all(theirs == key for *_, theirs, _ in everyone):
        return int(_engine.share_duplicate(handle))
    facts = [one for _, one, *_ in everyone] if known is None else known.everyone
    settings = (policy, bool(strict), bool(owner_exact), asked)
    marked = Marked(settings, facts, plain.rank, everyone[0][-1])
    if environment.checks(default=False):
        _engine.compare_calls(_PATIENCE if seconds == inf else seconds)
    start_engine(marked.everyone[marked.rank].workers if marked.size > 1 else None, marked.facts.sharing)
    if asked and not (known is not None and known.device_buffers):
        with _engine.plain_calls():
            alone = make_private(plain)
            handover.check(alone)
        alone.Free()
    return _mark(plain, marked, words, min(level for _, _, level, *_ in everyone), itself)


def _mark(plain: MPI.Intracomm, marked: Marked, words: bytes, watched: int, itself: bool) -> int:
    """Make a duplicate with settings on which all ranks have agreed, or mark the communicator itself.

    Collective; returns the handle of the marked communicator.
    """
    if itself:
        handle, marked.number = plain.handle, _engine.mark(plain, marked.limits, marked.key, marked)
    else:
        handle, marked.number = _engine.duplicate(plain, marked.limits, marked.key, marked, words)
    if marked.size > 1 and marked.needs_measurement:
        marked.measure(plain)
    for meet in hooks.meets if watched else ():
        meet(marked, watched)
    return int(handle)


def mark_group(comm: MPI.Intracomm, policies: Sequence[Policy], like: Marked | None) -> Marked:
    """Mark a process group's communicator with policies on which its ranks have agreed; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    policies : sequence of Policy
        By phases.
    like : Marked, optional
        Of a group whose links have been measured, if there is one.
    """
    _begin()
    start_engine()
    nodes, shares = environment.nodes(_WORLD.Get_size()), environment.shared_memory()
    mine = survey(comm, environment.threads(), nodes, shares)
    everyone = comm.allgather((mine, hooks.watched, _RANDOM.getrandbits(64)))
    facts = [one for one, *_ in everyone]
    marked = Marked((policies[0], False, False, False), facts, comm.rank, everyone[0][-1], like)
    marked.policies, marked.is_torchs = policies, True
    start_engine(mine.workers if marked.size > 1 else None, marked.facts.sharing)
    _mark(comm, marked, b"", min(level for _, level, _ in everyone), itself=True)
    return marked


def _known_of(plain: MPI.Intracomm) -> Marked | None:
    """Find Python's side of a marked communicator, or of a duplicate of one; equal on all ranks."""
    number = _engine.number_of(plain) or next(iter(_engine.duplicates_of(plain)), 0)
    return Marked.of(number) if number else None


def _meet(plain: MPI.Intracomm, seconds: float, notice: float) -> None:
    """Wait until all ranks have made the same call; collective.

    Raises
    ------
    TimeoutError
        If they do not within ``seconds``.
    """
    what = f"making a Comm of {plain.Get_name() or 'a communicator'}"
    for _ in range(1 if seconds == inf else 2):  # in the second round, a late rank fails after others gave up
        complete(plain, plain.Ibarrier(), what, seconds, notice)


@cache
def _begin() -> None:
    """Register Python's decisions with the layer, and look for misspelt variables on one rank of the job."""
    if _WORLD.Get_rank() == 0:
        environment.warn_of_unknown()
    _engine.serve_calls(prepare, load_kernels)
    for dtype, code in dtypes.CODES.items():
        if dtype.kind != "c":
            _engine.set_receiving(code, coding(codec("raw"), dtype))
