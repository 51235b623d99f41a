# Layouts of noncontiguous values (csrc/engine/layout.h), as the layer derives them from datatypes.


cdef extern from "engine/layout.h" namespace "compcoll::engine" nogil:
    cdef cppclass CLayout "const compcoll::engine::Layout":
        int32_t kind
        uint64_t nbytes, count
        int64_t stride
        vector[shared_ptr[CLayout]] children
    void c_gather "compcoll::engine::gather"(const CLayout&, const uint8_t*, uint64_t, uint64_t, uint8_t*)
    void c_scatter "compcoll::engine::scatter"(const CLayout&, uint8_t*, uint64_t, uint64_t, const uint8_t*)

cdef extern from "layer/types.h" namespace "compcoll::layer" nogil:
    ctypedef uint64_t Word
    cdef cppclass CPiece "compcoll::layer::Piece":
        int64_t offset
        shared_ptr[CLayout] layout
    CPiece repeated(int64_t, int64_t, const CPiece&)
    cdef cppclass CType "compcoll::layer::Type":
        uint32_t element
        cbool basic, shaped
        uint64_t nbytes
        int64_t extent, lower, length
        CPiece piece
        vector[uint64_t] shape
    const CType* type_of(Word)


RUN, LOOP, RUNS, PARTS = range(4)


cdef class Layout:
    """A node of csrc/engine/layout.h.

    Attributes
    ----------
    kind : int
        RUN, LOOP, RUNS or PARTS.
    nbytes : int
        Size of the packed block.
    count, stride : int
        Iterations of a LOOP, and its stride in bytes.
    child : Layout or None
        Body of a LOOP.
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
        """Pack bytes ``first`` to ``end`` of the block at address ``origin``."""
        packed = np.empty(end - first, np.uint8)
        cdef uintptr_t to = address_of(packed)
        c_gather(self.own.get()[0], <const uint8_t*>origin, first, end, <uint8_t*>to)
        return packed

    def scatter(self, uintptr_t origin, uint64_t first, packed):
        """Unpack an array of uint8 into the block from packed byte ``first`` on."""
        cdef uint64_t end = first + packed.size
        cdef uintptr_t source = address_of(packed)
        c_scatter(self.own.get()[0], <uint8_t*>origin, first, end, <const uint8_t*>source)


cdef Layout layout_from(shared_ptr[CLayout] own):
    cdef Layout layout = Layout()
    layout.own = own
    if layout.kind == LOOP:
        layout.child = layout_from(own.get().children[0])
    return layout


cdef class DatatypeEntry:
    """One entry of a datatype, as the layer describes it: its elements and the layout of its bytes.

    Attributes
    ----------
    element : numpy.dtype or None
        The basic type of all values, complex for pairs of real numbers; None if there are several types, or
        one that frames cannot hold.
    n : int
        Count of real numbers or integers.
    is_basic : bool
        True if entries are elements of an array.
    extent, lower, length : int
        MPI's extent, the offset of the first byte, and the bytes from the first to the last one.
    shape : tuple of int or None
        Elements along each dimension, the last one fastest in packed order; None without a shape.
    """

    cdef readonly object element, shape
    cdef readonly Py_ssize_t n, extent, lower, length
    cdef readonly bint is_basic
    cdef CPiece own

    def piece_of(self, int64_t n):
        """Offset of the first byte of ``n`` entries, and their layout."""
        cdef CPiece many = repeated(n, self.extent, self.own)
        return many.offset, layout_from(many.layout)

    def shape_of(self, n):
        """The shape of ``n`` entries."""
        return None if self.shape is None else tuple(k for k in (n, *self.shape) if k != 1)


def entry_of(datatype) -> DatatypeEntry:
    """The `DatatypeEntry` of a datatype; raises MPI.ERR_TYPE if it is not committed."""
    cdef const CType* found = type_of(handle(datatype))
    cdef DatatypeEntry entry = DatatypeEntry()
    if found == NULL:
        raise MPI.Exception(MPI.ERR_TYPE)
    entry.element = dtypes.dtype_of(found.element) if found.element else None
    entry.n = found.nbytes // dtypes.real_dtype(entry.element).itemsize if found.element else 0
    entry.extent, entry.lower, entry.length = found.extent, found.lower, found.length
    entry.is_basic, entry.own = found.basic, found.piece
    entry.shape = tuple(found.shape) if found.shaped else None
    return entry
