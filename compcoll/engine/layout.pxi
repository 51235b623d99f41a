# Where the values of a block lie that are not side by side (csrc/engine/layout.h).

RUN, LOOP, RUNS, PARTS = range(4)


cdef class Layout:
    """A node of csrc/engine/layout.h.

    Attributes
    ----------
    kind : int
        RUN, LOOP, RUNS or PARTS.
    nbytes : int
        Of the packed block.
    count, stride : int
        Of a LOOP, the stride in bytes.
    child : Layout or None
        Of a LOOP.
    """

    cdef shared_ptr[CLayout] own
    cdef readonly Layout child

    @property
    def kind(self):
        return self.own.get().kind

    @property
    def nbytes(self):
        return self.own.get().nbytes

    @property
    def count(self):
        return self.own.get().count

    @property
    def stride(self):
        return self.own.get().stride


cdef Layout layout_from(shared_ptr[CLayout] own):
    cdef Layout layout = Layout()
    layout.own = own
    if layout.kind == LOOP:
        layout.child = layout_from(own.get().children[0])
    return layout


cdef class StridedBlock:
    """A block whose values do not lie side by side, in place of an array of them.

    Parameters
    ----------
    layout : Layout
    origin : int
        Address of its first byte.
    dtype : numpy.dtype
    keep : object
        Owns the memory.
    first, size : int, optional
        The bytes of the layout that precede this block, and its elements.
    """

    cdef readonly Layout layout
    cdef readonly uintptr_t origin
    cdef readonly uint64_t first
    cdef readonly object dtype, keep
    cdef readonly Py_ssize_t size

    def __init__(self, Layout layout not None, uintptr_t origin, dtype, keep, uint64_t first=0, size=None):
        self.layout, self.origin, self.dtype, self.keep = layout, origin, dtype, keep
        self.first = first
        cdef uint64_t room = layout.own.get().nbytes - min(first, layout.own.get().nbytes)
        self.size = room // <uint64_t>dtype.itemsize if size is None else size
        if self.size < 0 or <uint64_t>(self.size * dtype.itemsize) > room:
            raise ValueError(f"{size} elements of {dtype} from byte {first} on in {layout.nbytes} bytes")

    def __len__(self):
        return self.size

    @property
    def itemsize(self):
        return self.dtype.itemsize

    @property
    def nbytes(self):
        return self.size * self.dtype.itemsize

    def __getitem__(self, part):
        """A block of some of its elements."""
        first, end, step = part.indices(self.size)
        if step != 1:
            raise ValueError(f"step {step} in elements of a block, which has to be 1")
        begin = self.first + first * self.itemsize
        return StridedBlock(self.layout, self.origin, self.dtype, self.keep, begin, max(end - first, 0))

    def view(self, dtype):
        """The same bytes as elements of another type."""
        dtype = np.dtype(dtype)
        n = self.nbytes // dtype.itemsize
        return StridedBlock(self.layout, self.origin, dtype, self.keep, self.first, n)

    def copy(self):
        """The values as an array."""
        values = np.empty(self.size, self.dtype)
        cdef uint8_t* packed = <uint8_t*>cnp.PyArray_DATA(values)
        cdef uint64_t end = self.first + self.nbytes
        with nogil:
            gather(self.layout.own.get()[0], <const uint8_t*>self.origin, self.first, end, packed)
        return values

    def __array__(self, dtype=None, copy=None):
        return self.copy() if dtype is None else self.copy().astype(dtype)

    def put(self, values):
        """Overwrite the first values, or all, with those of a contiguous array."""
        if not values.flags.c_contiguous or values.nbytes > self.nbytes:
            raise ValueError(f"{values.nbytes} bytes for a block of {self.nbytes}")
        cdef const uint8_t* packed = <const uint8_t*>cnp.PyArray_DATA(values)
        cdef uint64_t end = self.first + values.nbytes
        with nogil:
            scatter(self.layout.own.get()[0], <uint8_t*>self.origin, self.first, end, packed)
