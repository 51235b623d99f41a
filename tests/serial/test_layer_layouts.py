"""Layouts of datatypes pack and unpack the same bytes as MPI."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import LOOP, RUN, entry_of
from mpi4py import MPI

BASES = {"b": MPI.SIGNED_CHAR, "h": MPI.SHORT, "f": MPI.FLOAT, "d": MPI.DOUBLE, "D": MPI.C_DOUBLE_COMPLEX}
small = st.integers(0, 4)
#: Number of types drawn in a test.
MOST = 120


def order(draw):
    return draw(st.sampled_from([MPI.ORDER_C, MPI.ORDER_FORTRAN]))


def disjoint(draw, n, room):
    """n block lengths, and displacements at which they do not overlap, in any order."""
    lengths = [draw(st.integers(0, room)) for _ in range(n)]
    places = draw(st.permutations(range(n)))
    gap = draw(st.integers(0, 2))
    return lengths, [place * (room + gap) for place in places]


def contiguous(draw, old):
    return old.Create_contiguous(draw(small))


def vector(draw, old):
    length = draw(small)
    return old.Create_vector(draw(small), length, (length + draw(small)) * draw(st.sampled_from([1, -1])))


def hvector(draw, old):
    length = draw(small)
    stride = (length * span(old) + draw(st.integers(0, 9))) * draw(st.sampled_from([1, -1]))
    return old.Create_hvector(draw(small), length, stride)


def indexed(draw, old):
    return old.Create_indexed(*disjoint(draw, draw(small), 3))


def hindexed(draw, old):
    lengths, places = disjoint(draw, draw(small), 3)
    return old.Create_hindexed(lengths, [p * span(old) + 3 for p in places])


def indexed_block(draw, old):
    length = draw(small)
    return old.Create_indexed_block(length, [p * max(length, 1) for p in draw(st.permutations(range(4)))])


def hindexed_block(draw, old):
    length = draw(small)
    return old.Create_hindexed_block(
        length, [p * length * span(old) + 1 for p in draw(st.permutations(range(3)))]
    )


def struct(draw, old):
    other = old.Create_contiguous(2)
    lengths, places = disjoint(draw, 3, 2)
    made = MPI.Datatype.Create_struct(lengths, [2 * p * span(old) for p in places], [old, other, old])
    other.Free()
    return made


def subarray(draw, old):
    sizes = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 4)))]
    subsizes = [draw(st.integers(1, n)) for n in sizes]
    starts = [draw(st.integers(0, n - k)) for n, k in zip(sizes, subsizes, strict=True)]
    return old.Create_subarray(sizes, subsizes, starts, order(draw))


def darray(draw, old):
    sizes, kinds, args, grid = [], [], [], []
    for _ in range(draw(st.integers(1, 3))):
        n, kind = draw(st.integers(1, 7)), draw(st.integers(0, 3))
        grid.append(1 if kind == 0 else draw(st.integers(1, 3)))
        sizes.append(n)
        kinds.append(
            [MPI.DISTRIBUTE_NONE, MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_CYCLIC][kind]
        )
        args.append(draw(st.integers(1, 3)) if kind == 3 else MPI.DISTRIBUTE_DFLT_DARG)
    size = int(np.prod(grid))
    return old.Create_darray(size, draw(st.integers(0, size - 1)), sizes, kinds, args, grid, order(draw))


def resized(draw, old):
    lower, length = old.Get_true_extent()
    return old.Create_resized(lower - draw(small), length + draw(small) + 4)


def dup(draw, old):
    return old.Dup()


MAKERS = [
    contiguous,
    vector,
    hvector,
    indexed,
    hindexed,
    indexed_block,
    hindexed_block,
    struct,
    subarray,
    darray,
    resized,
    dup,
]


def span(datatype):
    """Number of bytes in which an entry fits, counted from any of its bytes."""
    return datatype.Get_extent()[1] + datatype.Get_true_extent()[1]


@st.composite
def derived(draw, makers=None):
    """A committed datatype of one basic type, and that type's dtype."""
    code = draw(st.sampled_from(list(BASES)))
    datatype = BASES[code]
    for make in makers or draw(st.lists(st.sampled_from(MAKERS), min_size=1, max_size=4)):
        made = make(draw, datatype)
        if datatype != BASES[code]:
            datatype.Free()
        datatype = made
    return datatype.Commit(), np.dtype(code)


def packed(datatype, n, memory, offset, into=None):
    """Pack n entries by MPI; or unpack `into` to memory, if it is given."""
    entries = datatype.Create_hindexed([n], [offset])
    whole = entries.Create_resized(0, memory.size).Commit()
    if into is None:
        into = np.zeros(n * datatype.Get_size(), np.uint8)
        whole.Pack(memory, into, 0, MPI.COMM_SELF)
    else:
        whole.Unpack(into, 0, memory, MPI.COMM_SELF)
    whole.Free()
    entries.Free()
    return into


def check(datatype, dtype, n, draw):
    entry = entry_of(datatype)
    assert entry.extent == datatype.Get_extent()[1]
    assert (entry.lower, entry.length) == datatype.Get_true_extent()
    offset, layout = entry.piece_of(n)
    nbytes = n * datatype.Get_size()
    assert layout.nbytes == nbytes
    if not nbytes:
        return
    assert entry.element == dtype
    reach = abs(entry.lower) + entry.length + n * abs(entry.extent) + 16
    rng = np.random.default_rng(n)
    memory = rng.integers(0, 256, 2 * reach, dtype=np.uint8)
    origin = memory.ctypes.data + reach + offset
    want = packed(datatype, n, memory, reach)
    assert (layout.gather(origin, 0, nbytes) == want).all()
    first = draw(st.integers(0, nbytes))
    end = draw(st.integers(first, nbytes))
    assert (layout.gather(origin, first, end) == want[first:end]).all()
    values = rng.integers(0, 256, nbytes, dtype=np.uint8)
    one, other = memory.copy(), want.copy()
    other[first:end] = values[first:end]
    packed(datatype, n, one, reach, other)
    layout.scatter(origin, first, values[first:end])
    assert (memory == one).all()
    shape = entry.shape_of(n)
    if shape is not None:
        assert np.prod(shape, dtype=int) * dtype.itemsize == nbytes


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=MOST // 4, deadline=None)
@given(data=st.data())
def test_each_way_to_make_one(make, data):
    datatype, dtype = data.draw(derived([make]))
    check(datatype, dtype, data.draw(st.integers(0, 3)), data.draw)
    datatype.Free()


@settings(max_examples=MOST, deadline=None)
@given(data=st.data())
def test_nested(data):
    datatype, dtype = data.draw(derived())
    check(datatype, dtype, data.draw(st.integers(0, 3)), data.draw)
    datatype.Free()


@settings(max_examples=MOST // 4, deadline=None)
@given(data=st.data())
def test_columns_of_a_matrix(data):
    code = data.draw(st.sampled_from("fdD"))
    base, width = BASES[code], data.draw(st.integers(34, 50))
    column = base.Create_vector(data.draw(st.integers(2, 30)), 1, width)
    near = column.Create_resized(0, data.draw(st.sampled_from([1, 2])) * base.Get_size())
    columns = near.Create_contiguous(data.draw(st.integers(1, 17))).Commit()
    check(columns, np.dtype(code), 1, data.draw)
    for datatype in (column, near, columns):
        datatype.Free()


SHAPES = {
    "subarray": (lambda: MPI.FLOAT.Create_subarray([8, 9, 10], [3, 9, 10], [5, 0, 0]), 1, (3, 9, 10)),
    "Fortran": (
        lambda: MPI.FLOAT.Create_subarray([8, 9, 10], [3, 4, 5], [5, 0, 0], MPI.ORDER_FORTRAN),
        1,
        (5, 4, 3),
    ),
    "flat axes": (lambda: MPI.FLOAT.Create_subarray([8, 1, 10], [3, 1, 5], [5, 0, 0]), 1, (3, 5)),
    "many": (lambda: MPI.FLOAT.Create_vector(7, 3, 5), 2, (2, 7, 3)),
    "resized": (lambda: MPI.FLOAT.Create_subarray([8, 9], [3, 9], [5, 0]).Create_resized(0, 4), 1, (3, 9)),
    "array": (
        lambda: MPI.FLOAT.Create_darray(
            4, 3, [10, 9], [MPI.DISTRIBUTE_BLOCK] * 2, [MPI.DISTRIBUTE_DFLT_DARG] * 2, [2, 2]
        ),
        1,
        (5, 4),
    ),
    "indexed": (lambda: MPI.FLOAT.Create_indexed([3, 4], [0, 9]), 1, None),
    "basic": (lambda: MPI.FLOAT.Dup(), 12, (12,)),
}


@pytest.mark.parametrize(("make", "n", "shape"), SHAPES.values(), ids=SHAPES)
def test_shapes(make, n, shape):
    datatype = make().Commit()
    assert entry_of(datatype).shape_of(n) == shape
    datatype.Free()


def test_in_as_few_loops_as_it_takes():
    rows = MPI.DOUBLE.Create_subarray([6, 7, 8], [2, 7, 8], [1, 0, 0]).Commit()
    assert entry_of(rows).piece_of(1)[1].kind == RUN
    columns = MPI.DOUBLE.Create_subarray([6, 7, 8], [6, 7, 2], [0, 0, 3]).Commit()
    layout = entry_of(columns).piece_of(1)[1]
    assert (layout.kind, layout.count, layout.stride, layout.child.kind) == (LOOP, 42, 64, RUN)
    regular = MPI.FLOAT.Create_indexed([1, 2, 3, 3], [0, 1, 6, 12]).Commit()
    layout = entry_of(regular).piece_of(1)[1]
    assert (layout.kind, layout.count, layout.stride, layout.child.nbytes) == (LOOP, 3, 24, 12)
    for datatype in (rows, columns, regular):
        datatype.Free()


def test_basic_types():
    """An entry's element is the one type that it has values of; None for several, or for long double."""
    empty = MPI.Datatype.Create_struct([3, 0], [0, 40], [MPI.FLOAT, MPI.INT]).Commit()
    mixed = MPI.Datatype.Create_struct([3, 1], [0, 40], [MPI.FLOAT, MPI.INT]).Commit()
    long = MPI.LONG_DOUBLE.Create_vector(2, 1, 3).Commit()
    assert [entry_of(t).element for t in (empty, mixed, long)] == [np.dtype("f4"), None, None]
    pairs, ints = MPI.TWOINT.Dup().Commit(), MPI.INT.Create_contiguous(2).Commit()
    assert entry_of(pairs).element == entry_of(ints).element == np.dtype(np.intc)
    assert entry_of(pairs).n == entry_of(ints).n == 2
    for datatype in (empty, mixed, long, pairs, ints):
        datatype.Free()


def test_what_is_kept_goes_with_the_datatype():
    handles = set()
    for n in range(2, 40):  # MPI reuses handles
        vector = MPI.FLOAT.Create_vector(n, 1, 2).Commit()
        assert entry_of(vector).piece_of(1)[1].nbytes == 4 * n
        copy = vector.Dup()
        assert entry_of(copy).piece_of(1)[1].nbytes == 4 * n
        handles.add(vector.handle)
        vector.Free()
        copy.Free()
    assert len(handles) < 38


def test_uncommitted():
    vector = MPI.FLOAT.Create_vector(5, 1, 2)
    with pytest.raises(MPI.Exception):
        entry_of(vector)
    vector.Commit()
    assert entry_of(vector).n == 5
    vector.Free()
