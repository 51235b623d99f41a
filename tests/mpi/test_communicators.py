"""Communicators made from communicators, and calls that MPI carries unchanged."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll
from compcoll.engine import _engine

N = 5001


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "zfp:rate=24", min_nbytes=0)


def works(new, policy) -> bool:
    """True if a communicator has this policy and accelerates calls."""
    got = data(N, "f4", new.rank)
    new.Bcast(got, new.size - 1)
    close = np.allclose(got, data(N, "f4", new.size - 1), atol=1e-3)
    return close and new.policy == policy and new.report.accelerated == (new.size > 1)


def within_cart(make):
    """Maker that returns a Cartesian communicator, and one made from it."""
    return lambda c: [grid := c.Create_cart([c.size, 1]), make(grid)]


MAKERS = {
    "Dup": lambda c: [c.Dup()],
    "Clone": lambda c: [c.Clone()],
    "Dup_with_info": lambda c: [c.Dup_with_info(MPI.INFO_NULL)],
    "Split": lambda c: [c.Split(0, -c.rank)],
    "Split_type": lambda c: [c.Split_type(MPI.COMM_TYPE_SHARED)],
    "Create": lambda c: [c.Create(c.Get_group())],
    "Create_group": lambda c: [c.Create_group(c.Get_group())],
    "Create_cart": lambda c: [c.Create_cart([c.size], [True])],
    "Cart Create_cart": within_cart(lambda grid: grid.Create_cart([grid.size])),
    "Sub": within_cart(lambda grid: grid.Sub([True, False])),
    "Cart Dup": within_cart(lambda grid: grid.Dup()),
    "Create_graph": lambda c: [c.Create_graph(range(1, c.size + 1), [*range(1, c.size), 0])],
    "adjacent": lambda c: [c.Create_dist_graph_adjacent([(c.rank - 1) % c.size], [(c.rank + 1) % c.size])],
    "Create_dist_graph": lambda c: [c.Create_dist_graph([c.rank], [1], [(c.rank + 1) % c.size])],
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_makers(comm, ours, agree, make):
    """Communicators made by wrappers and by mpi4py's classes are known to the layer until they are freed."""
    before = _engine.marked_count()
    for of in (ours, MPI.Intracomm(ours)):
        made = make(of)
        new = made[-1]
        assert agree(_engine.number_of(new) not in (0, _engine.number_of(ours)))
        assert agree(_engine.marked_count() == before + len(made))
        assert agree(of is not ours or (isinstance(new, compcoll.Comm) and works(new, ours.policy)))
        for one in made:
            one.Free()
        assert agree(new == MPI.COMM_NULL and _engine.marked_count() == before)
    for one in make(comm):
        assert agree(_engine.number_of(one) == 0 and _engine.marked_count() == before)
        one.Free()
    assert agree(works(ours, ours.policy))


def test_parts(comm, ours, agree):
    half = ours.Split(comm.rank % 2)
    assert agree(works(half, ours.policy))
    half.Free()
    some = ours.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    assert agree((some != MPI.COMM_NULL) == (comm.rank == 0))
    assert agree(some == MPI.COMM_NULL or works(some, ours.policy))
    alone = ours.Create(ours.Get_group().Incl([comm.size - 1]))
    assert agree((alone != MPI.COMM_NULL) == (comm.rank == comm.size - 1))
    grid = ours.Create_cart([1])
    assert agree((grid != MPI.COMM_NULL) == (comm.rank == 0))
    for new in (some, alone, grid):
        if new != MPI.COMM_NULL:
            new.Free()


@pytest.mark.parametrize("wrong", ["world", 7, MPI.INFO_NULL])
def test_other_types_are_an_error_that_names_them(agree, wrong):
    with pytest.raises(TypeError, match=f"takes an intracommunicator .*, a {type(wrong).__name__}"):
        compcoll.Comm(wrong)
    for buffer in (compcoll.typed, compcoll.shaped):
        with pytest.raises(TypeError, match=r"an array or a tensor is needed, not \[1.0\], a list"):
            buffer([1.0])
    assert agree(True)


def test_null_and_unadopted(comm, agree):
    assert compcoll.Comm() == MPI.COMM_NULL
    assert compcoll.Comm(MPI.COMM_NULL) == MPI.COMM_NULL
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0)
    duplicate, request = ours.Idup()
    request.Wait()
    got = data(N, "f4", comm.rank)
    duplicate.Bcast(got)
    assert agree(bits(got) == bits(data(N, "f4", 0)))
    assert agree(type(duplicate) is MPI.Intracomm)
    duplicate.Free()
    assert agree(isinstance(ours, MPI.Intracomm) and ours != comm and ours.origin == comm)
    assert agree(ours.Get_name() == comm.Get_name())


def test_intercommunicator(comm, ours, agree):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    half = ours.Split(comm.rank % 2)
    inter = half.Create_intercomm(0, ours, 1 - comm.rank % 2)
    merged = inter.Merge()
    assert agree(merged.size == comm.size and type(merged) is MPI.Intracomm)
    again = compcoll.Comm(merged, "lossless", min_nbytes=0)
    assert agree(works(again, again.policy))
    for new in (merged, inter, half):
        new.Free()


def test_from_a_group(comm, agree):
    """A communicator made from a group is a plain one, which can be wrapped."""
    group = comm.Get_group()
    try:
        new = compcoll.Comm.Create_from_group(group, "compcoll test")
    except (NotImplementedError, MPI.Exception):
        pytest.skip("this MPI makes no communicators from groups alone")
    got = data(N, "f4", comm.rank)
    new.Bcast(got)
    assert agree(bits(got) == bits(data(N, "f4", 0)))
    assert agree(
        type(new) is MPI.Intracomm
        and works(compcoll.Comm(new, "raw", min_nbytes=0), compcoll.Comm(comm, "raw", min_nbytes=0).policy)
    )
    new.Free()
    group.Free()


def test_pickle_gives_a_wrapper():
    """A pickled or copied wrapper of a predefined communicator is equal; others cannot be pickled."""
    ours = compcoll.Comm(MPI.COMM_WORLD, "zfp:rate=9", min_nbytes=5, owner_exact=True)
    for again in (pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)):
        assert type(again) is compcoll.Comm
        assert again == ours
        assert again.origin == MPI.COMM_WORLD
        assert again.settings == ours.settings
    new = ours.Dup()
    with pytest.raises(ValueError, match="cannot serialize"):
        pickle.dumps(new)
    new.Free()


def test_repr(comm, agree):
    """The repr of a wrapper shows its name, rank, size and policy, or that the communicator is null."""
    ours = compcoll.Comm(comm, "zfp:rate=9", min_nbytes=5)
    ours.Set_name("fields")
    assert agree(
        repr(ours) == f"<compcoll.Comm: 'fields', rank {comm.rank} of {comm.size}, zfp:rate=9, min_nbytes=5>"
    )
    new = ours.Dup()
    assert agree(f"rank {comm.rank} of {comm.size}, zfp:rate=9" in repr(new))
    new.Free()
    assert agree(repr(new) == repr(compcoll.Comm()) == "<compcoll.Comm: null>")


def test_callbacks_of_attributes_run_once(nodes_of_one, comm, agree):
    """The callbacks of a program's attribute run for its own communicators alone, as on plain ones."""
    ran: list[str] = []

    def copied(comm, key, value) -> int:
        ran.append("copied")
        return value

    key = MPI.Comm.Create_keyval(copied, lambda comm, key, value: ran.append("deleted"))

    def used(make, use=lambda made: None) -> list[int]:
        """Numbers of callbacks before each step, and at the end."""
        ran.clear()
        origin, numbers = comm.Dup(), []
        origin.Set_attr(key, comm.rank)
        made = [make(origin)]
        for step in (
            lambda: made.append(made[0].Dup()),
            lambda: made.append(made[1].Split()),
            lambda: made.append(made[1].Create_cart([comm.size])),
            lambda: use(made[0]),
            *(lambda at=at: made[at].Free() for at in (2, 3, 1, 0)),
            origin.Free,
        ):
            numbers.append(len(ran))
            step()
        return [*numbers, len(ran)]

    plain, wrapped = used(MPI.Intracomm.Dup), partial(compcoll.Comm, codec="lossless", min_nbytes=0)
    assert agree(used(wrapped, lambda made: made.Bcast_init(np.zeros(N)).Free()) == plain)
    assert agree(used(partial(wrapped, when="pays")) == plain)
    MPI.Comm.Free_keyval(key)


def test_mpi_tells_what_it_has_run_out_of(comm, agree):
    """Every rank gets MPI's own error if it has no communicator left, and what exists still works."""
    if MPI.get_vendor()[0] != "MPICH":
        pytest.skip("other libraries have room for tens of thousands")
    if comm.size == 1:
        pytest.skip("a Comm of one rank takes a single communicator of MPI")
    ours, kept = compcoll.Comm(comm, "lossless", min_nbytes=0), []
    assert agree(works(ours, ours.policy))  # mpi4py makes a communicator for its own sums
    with pytest.raises(MPI.Exception) as plain:
        kept.extend(comm.Dup() for _ in range(1 << 12))
    for make in (
        lambda: ours.Split(),  # one free communicator is too few: the second one is for frames
        lambda: compcoll.Comm(comm, "lossless", min_nbytes=1),
        lambda: ours.Create_cart([comm.size]),
    ):
        kept.pop().Free()
        with pytest.raises(MPI.Exception, match="Too many communicators") as found:
            make()
        assert agree(found.value.Get_error_class() == plain.value.Get_error_class())
        kept.append(comm.Dup())  # what was made in vain has been freed
    with pytest.raises(MPI.Exception, match="Too many communicators"):
        ours.Bcast_init(np.zeros(N))
    for one in kept:
        one.Free()
    part = ours.Split()
    assert agree(works(part, ours.policy))
    part.Free()


def test_hundreds_of_communicators(comm, agree):
    """More than a thousand duplicates can exist.

    Sixteen of them share a private communicator: MPICH has room for 2,040 in all, too few for one each.
    """
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0)
    kept = [ours.Dup() for _ in range(1100)]
    got = data(N, "f4", comm.rank)
    kept[-1].Bcast(got)
    assert agree(bits(got) == bits(data(N, "f4", 0)))
    for new in kept:
        new.Free()
