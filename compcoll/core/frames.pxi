# Frames (csrc/engine/frame.h, coding.h): encoding, decoding, and the exceptions for damaged frames.

#: Texts of the statuses of csrc/abi.h.
STATUS = {
    NONFINITE: "a NaN or an infinity",
    UNREPRESENTABLE: "a value that the codec cannot represent",
    TOO_LARGE: "a payload larger than the array",
    BAD_STREAM: "not a stream of this codec",
    UNSUPPORTED: "a dtype or parameter that the codec does not take",
}
#: Texts of `Damage`.
_DAMAGE = (
    "the header is sound",
    "{available} bytes are no frame: its header alone has 80",
    "not a frame of compcoll: its magic bytes are {magic}, not b'CCF1'",
    "the header's checksum does not match: the header is damaged",
    "frame version {version} is not 1, the one that this release reads",
    "unknown dtype or codec in the header: {dtype}, {codec}",
    "{ndim} dimensions {dims} are not at most 3",
    "{dims} {dtype} in bytes are more than 9223372036854775807",
    "payload of {payload_nbytes} bytes is larger than the array's {nbytes}",
    "truncated: {available} of {frame_nbytes} bytes",
    "error bound {bound} is negative",
)

cdef dict _TYPENUMS = {code: dtype.num for dtype, code in dtypes.CODES.items()}
#: Smallest array in bytes for which Python's lock is released: coding smaller ones may take less time than
#: getting the lock back.
cdef enum:
    RELEASE_NBYTES = 1 << 15
#: Scratch memory of sums.
cdef CPool* _pool = new CPool(0)


cdef bytes name_of(const CHeader* header):
    return (<const char*>&header.codec)[:8].rstrip(b"\0")


cdef tuple shape_of(const CHeader* header):
    cdef uint32_t i
    return tuple([header.shape[i] for i in range(header.ndim)])


cdef object damaged(Damage damage, const uint8_t* data, uint64_t available, const CHeader* header):
    """The exception for a damaged header."""
    if damage == Damage.SHORT:
        return FrameError(_DAMAGE[1].format(available=available))
    code = header.dtype
    return FrameError(_DAMAGE[<int>damage].format(
        available=available, magic=data[:4], version=data[4], codec=name_of(header), ndim=header.ndim,
        dtype=dtypes.dtype_of(code) if code in _TYPENUMS else code, dims=[header.shape[i] for i in range(3)],
        payload_nbytes=header.payload_nbytes, nbytes=header.nbytes(), bound=header.bound,
        frame_nbytes=HEADER_NBYTES + header.payload_nbytes,
    ))


cdef object exception_of(const Error* error):
    """The exception for an error of csrc/engine/coding.h that involves neither other ranks nor MPI."""
    cdef const CHeader* header = &error.header
    if error.problem == Problem.HEADER:
        return damaged(<Damage>error.status, error.bytes, error.available, header)
    if error.problem == Problem.CHECKSUM:
        return FrameError(f"the payload's checksum is not {header.checksum:#010x}: the payload is damaged")
    if error.problem == Problem.PAYLOAD:
        text = f"the {name_of(header).decode()} payload of {header.payload_nbytes} bytes is "
        return FrameError(text + STATUS[error.status])
    if error.problem == Problem.BASE:
        return FrameError(
            "the frame holds differences to values that are not here, or are not the ones that it names: "
            "after an error or a restart the transfer has to be prepared again by all its ranks"
        )
    if error.problem == Problem.DEVICE:
        return RuntimeError(error.fault.text().decode())
    return MemoryError("no memory is left for a chunk")


cdef CFrame opened(cnp.ndarray data, available) except *:
    """A frame, or its header alone, in host memory."""
    cdef CFrame frame
    cdef uint64_t nbytes = cnp.PyArray_NBYTES(data)
    if not cnp.PyArray_IS_C_CONTIGUOUS(data):
        raise ValueError("a frame has to be contiguous")
    frame.memory = <uint8_t*>cnp.PyArray_DATA(data)
    if available is not None and nbytes >= HEADER_NBYTES:
        nbytes = available
    damage = unpack(active[0], frame.memory, nbytes, &frame.header)
    if damage != Damage.NONE:
        raise damaged(damage, frame.memory, nbytes, &frame.header)
    frame.nbytes = HEADER_NBYTES + frame.header.payload_nbytes
    return frame


def read_header(cnp.ndarray data not None, available=None):
    """The fields of `compcoll.FrameInfo`."""
    cdef CFrame frame = opened(data, available)
    cdef CHeader* h = &frame.header
    return (
        name_of(h).decode(), dtypes.dtype_of(h.dtype), shape_of(h), (h.params[0], h.params[1]),
        h.payload_nbytes, h.bound, h.fallback, h.checksum if h.has_checksum else None,
    )


def write_header(info, uint8_t[::1] frame not None, bint complete=True):
    """Write the header of a `compcoll.FrameInfo`, with checksums if it is `complete`."""
    cdef CHeader h
    cdef int i
    if frame.shape[0] < <Py_ssize_t>(HEADER_NBYTES + (info.payload_nbytes if complete else 0)):
        raise ValueError(f"{frame.shape[0]} bytes have no room for a frame of {info.frame_nbytes}")
    h.codec, h.dtype = packed_name(info.codec.encode("ascii")), dtypes.code_of(info.dtype)
    h.ndim = len(info.shape)
    for i in range(3):
        h.shape[i] = info.shape[i] if i < len(info.shape) else 1
    h.params[0], h.params[1] = info.params
    h.payload_nbytes, h.bound, h.checksum = info.payload_nbytes, info.bound, info.checksum or 0
    h.has_checksum, h.fallback = info.checksum is not None, info.fallback
    if complete:
        pack(active[0], &h, &frame[0])
    else:
        outline(h, &frame[0])


def check_out(out, int code, uint64_t n, bint adding):
    """Raise an exception if an array cannot hold a frame's values, or have them added."""
    needed = dtypes.dtype_of(wide(code) if adding else code)
    if out.dtype != needed:
        raise TypeError(f"out has dtype {out.dtype}, and the frame needs {needed}")
    if out.size != n:
        raise ValueError(f"out has {out.size} elements, and the frame {n}")


cdef CReference reference_to(base, uint64_t number) except *:
    """A contiguous array, or None, as a base."""
    cdef CReference reference
    if base is not None:
        reference.data = <const uint8_t*>cnp.PyArray_DATA(base)
        reference.nbytes = cnp.PyArray_NBYTES(base)
        reference.name = number << 32 | active.checksum(reference.data, reference.nbytes)
    return reference


cdef class CodecCall:
    """A thread's call of codecs that are not in the table: owners of its memory, and a codec's exception."""


cdef class Coding:
    """Codecs to try in turn for arrays of a dtype, and the decoder of any frame.

    Parameters
    ----------
    dtype : numpy.dtype, optional
        None if frames are only decoded.
    lossless : bool
        True if a lossless codec was asked for.
    codecs : tuple of Codec
        `Codec.table_entry` gives each one's place in the table of codecs, and its parameters.
    decoder : callable, optional
        ``decoder(frame, dst)`` decodes an intact frame of a codec that is not in the table, and returns a
        status.
    guard : callable
        Returns the context manager for calls of codecs that are not in the table.
    parts : bool
        True if arrays of a real dtype are parts of complex numbers; bounds are then of the complex errors.
    plain : bool
        True if the engine's frames have no checksum, like messages of MPI.

    Attributes
    ----------
    codecs : tuple of Codec
    failed : BaseException or None
        Last exception of a codec that is not in the table, raised while the engine called it.
    """

    def __init__(
        self, dtype=None, bint lossless=True, tuple codecs=(), decoder=None, guard=nullcontext,
        bint parts=False, bint plain=False,
    ):
        cdef CAttempt attempt
        cdef int ndim
        self.codecs, self.decoder, self.guard, self.calls = codecs, decoder, guard, {}
        self.own.level = &active
        self.own.dtype, self.own.lossless = 0 if dtype is None else dtypes.code_of(dtype), lossless
        self.own.parts = parts or is_complex(self.own.dtype)
        self.own.plain = plain
        for codec in codecs:
            attempt.codec, params = codec.table_entry(dtype)
            for ndim in range(3):
                attempt.params[ndim][0], attempt.params[ndim][1] = params[ndim]
            self.own.attempts.push_back(attempt)
            self.calls_back = self.calls_back or attempt.codec == CODEC_CALLBACK
        self.own.pace = &self.pace
        self.own.callbacks.context = <void*>self
        self.own.callbacks.encode = call_encode
        self.own.callbacks.decode = call_decode

    def encode(self, cnp.ndarray array not None, out=None, double carried=0.0, bint checksum=True,
               cnp.ndarray base=None, uint64_t number=0):
        """Encode an array of the dtype, as `Codec.encode` does.

        ``base`` is contiguous, and as large as the array; frames of differences to it contain its ``number``.
        """
        cdef CFrame frame
        frame.header.has_checksum = checksum
        return self.encode_to(array, out, &frame, carried, NULL, reference_to(base, number))

    def reconstruct(self, cnp.ndarray array not None, out, cnp.ndarray values not None):
        """Encode an array; return the frame, and True if ``values`` hold what it decodes to.

        Not every codec gives the decoded values. ``values`` are contiguous, like ``array`` otherwise, and may
        be ``array`` itself. If the result is False, ``array`` is unchanged, and other ``values`` undefined.
        """
        cdef CFrame frame
        cdef CReference base
        frame.header.has_checksum = True
        made = self.encode_to(array, out, &frame, 0.0, <uint8_t*>cnp.PyArray_DATA(values), base)
        return made, frame.settled

    cdef object enter(self, CodecCall call):
        """Make a call this thread's current one; return the call that it is nested in, if any."""
        thread = PyThread_get_thread_ident()
        outer = self.calls.get(thread)
        self.calls[thread] = call
        return outer

    cdef object leave(self, CodecCall outer):
        if outer is None:
            del self.calls[PyThread_get_thread_ident()]
        else:
            self.calls[PyThread_get_thread_ident()] = outer

    cdef object encode_to(self, array, out, CFrame* frame, double carried, uint8_t* values, CReference base):
        """Fill in a frame; return a view of its memory."""
        cdef CHeader* header = &frame.header
        cdef cnp.npy_intp need
        cdef uint8_t[::1] room
        cdef const uint8_t* data
        cdef Error error
        cdef CodecCall call = None, outer = None
        cdef int i
        header.dtype, header.ndim = self.own.dtype, cnp.PyArray_NDIM(array)
        if header.ndim > 3:
            raise ValueError(f"an array of {header.ndim} dimensions: at most 3 are supported; reshape it")
        if not cnp.PyArray_IS_C_CONTIGUOUS(array):
            array = np.ascontiguousarray(array)
        for i in range(3):
            header.shape[i] = cnp.PyArray_DIM(array, i) if i < <int>header.ndim else 1
        need = HEADER_NBYTES + header.nbytes() + SLACK
        if out is None:
            out = cnp.PyArray_SimpleNew(1, &need, cnp.NPY_UINT8)
            frame.memory = <uint8_t*>cnp.PyArray_DATA(out)
        elif out.nbytes < need:
            raise ValueError(f"out has {out.nbytes} bytes, and encoding needs {need}")
        else:
            room = out
            frame.memory = &room[0]
        data = <const uint8_t*>cnp.PyArray_DATA(array)
        if self.calls_back:
            call = CodecCall.__new__(CodecCall)
            call.read, call.written = array, out
            outer = self.enter(call)
        try:
            if need < RELEASE_NBYTES:
                error = Coder(self.own, _pool[0]).encode(data, carried, values, frame, base)
            else:
                with nogil:
                    error = Coder(self.own, _pool[0]).encode(data, carried, values, frame, base)
        finally:
            if call is not None:
                self.leave(outer)
        if error.problem != Problem.NONE:
            raise call.failure if error.problem == Problem.CALLBACK else exception_of(&error)
        return out[:frame.nbytes]

    def decode(self, cnp.ndarray data not None, cnp.ndarray out=None, bint adding=False,
               cnp.ndarray base=None):
        """Decode a frame to ``out`` or a new array, or add its values to ``out``.

        ``base`` is contiguous.
        """
        cdef CFrame frame = opened(data, None)
        cdef CHeader* header = &frame.header
        cdef CReference reference
        cdef Error error
        cdef CodecCall call = None, outer = None
        cdef Span into
        if out is None:
            out = cnp.PyArray_EMPTY(header.ndim, <cnp.npy_intp*>header.shape, _TYPENUMS[header.dtype], 0)
        else:
            check_out(out, header.dtype, header.size(), adding)
            if not cnp.PyArray_IS_C_CONTIGUOUS(out) or not cnp.PyArray_ISWRITEABLE(out):
                raise ValueError("out has to be C-contiguous and writable")
        into.data, into.n = <uint8_t*>cnp.PyArray_DATA(out), header.size()
        into.dtype = wide(header.dtype) if adding else header.dtype
        if header.codec == packed_name(b"delta"):
            reference = reference_to(base, header.params[1] >> 32)
        if Coder(self.own, _pool[0]).index_of(header.codec) < 0:
            call = CodecCall.__new__(CodecCall)
            call.read, call.written = data, out
            outer = self.enter(call)
        try:
            if header.nbytes() < RELEASE_NBYTES:
                error = Coder(self.own, _pool[0]).decode(frame, into, adding, reference)
            else:
                with nogil:
                    error = Coder(self.own, _pool[0]).decode(frame, into, adding, reference)
        finally:
            if call is not None:
                self.leave(outer)
        if error.problem != Problem.NONE:
            raise call.failure if error.problem == Problem.CALLBACK else exception_of(&error)
        return out

    @property
    def is_compiled(self):
        """True if all codecs are in the table."""
        return not self.calls_back


cdef object array_at(const CHeader* header, const void* memory, owner):
    """Memory as an array of a frame's dtype and shape; its base is the owner, if there is one."""
    array = cnp.PyArray_SimpleNewFromData(
        header.ndim, <cnp.npy_intp*>header.shape, _TYPENUMS[header.dtype], <void*>memory)
    if owner is not None:
        cnp.set_array_base(array, owner)
    return array


cdef object bytes_at(const void* memory, cnp.npy_intp nbytes, owner):
    array = cnp.PyArray_SimpleNewFromData(1, &nbytes, cnp.NPY_UINT8, <void*>memory)
    if owner is not None:
        cnp.set_array_base(array, owner)
    return array


cdef object check_status(str codec, str method, value, str expected):
    """Raise RuntimeError if a faulty codec has returned a value that is no status."""
    if value not in STATUS:
        raise RuntimeError(
            f"codec {codec!r}: {method} returned {value}, which is neither {expected} nor a status, "
            f"{min(STATUS)} to {max(STATUS)}"
        )


cdef int64_t failed(Coding coding, CodecCall call, problem) noexcept:
    """Keep a codec's exception for the thread's call, or the engine, whose memory no array may outlive."""
    if call is not None:
        call.failure = problem
    else:
        clear_frames(problem.__traceback__)
        coding.failed = problem
    return INT64_MIN


cdef int64_t call_encode(
    void* context, uint64_t attempt, CHeader* header, const void* src, void* dst
) noexcept with gil:
    cdef Coding coding = <Coding>context
    cdef CodecCall call = coding.calls.get(PyThread_get_thread_ident())
    cdef uint64_t room = header.nbytes() + SLACK
    try:
        with coding.guard():
            codec, values = coding.codecs[attempt], array_at(header, src, None if call is None else call.read)
            values.flags.writeable = False
            out = bytes_at(dst, room, None if call is None else call.written)
            nbytes, bound, params = codec.encode_payload(values, out)
            if not 0 <= nbytes <= room:
                check_status(codec.name, "encode_payload", nbytes, "a size within dst")
                return nbytes
            header.codec, header.bound = packed_name(codec.name.encode("ascii")), bound
            header.params[0], header.params[1] = params
            return nbytes
    except BaseException as problem:
        return failed(coding, call, problem)


cdef int64_t call_decode(void* context, const CFrame& frame, void* dst) noexcept with gil:
    cdef Coding coding = <Coding>context
    cdef CodecCall call = coding.calls.get(PyThread_get_thread_ident())
    cdef const CHeader* header = &frame.header
    cdef bint scratch = call is not None and cnp.PyArray_DATA(call.written) != dst
    try:
        with coding.guard():
            data = bytes_at(frame.memory, frame.nbytes, None if call is None else call.read)
            data.flags.writeable = False
            if scratch:  # the codec may keep its array, but the pool reuses this memory
                out = np.empty(shape_of(header), dtypes.dtype_of(header.dtype))
            else:
                out = array_at(header, dst, None if call is None else call.written)
            status = coding.decoder(data, out)
            if status != 0:
                check_status(name_of(header).decode(), "decode_payload", status, "0")
            elif scratch:
                memcpy(dst, cnp.PyArray_DATA(out), header.nbytes())
            return status
    except BaseException as problem:
        return failed(coding, call, problem)
