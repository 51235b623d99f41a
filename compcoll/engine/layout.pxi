# Where the values of a block lie that are not side by side (csrc/engine/layout.h); for tests.

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

    def gather(self, uintptr_t origin, uint64_t first, uint64_t end):
        """Bytes ``first`` to ``end`` of the packed block whose first byte is at an address."""
        packed = np.empty(end - first, np.uint8)
        gather(self.own.get()[0], <const uint8_t*>origin, first, end, <uint8_t*>cnp.PyArray_DATA(packed))
        return packed

    def scatter(self, uintptr_t origin, uint64_t first, packed):
        """Overwrite those from ``first`` on with a contiguous array of uint8."""
        cdef uint64_t end = first + packed.size
        scatter(self.own.get()[0], <uint8_t*>origin, first, end, <const uint8_t*>cnp.PyArray_DATA(packed))


cdef Layout layout_from(shared_ptr[CLayout] own):
    cdef Layout layout = Layout()
    layout.own = own
    if layout.kind == LOOP:
        layout.child = layout_from(own.get().children[0])
    return layout
