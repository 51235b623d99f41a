# Marked communicators.

def marked_count() -> int:
    """Number of marked communicators; for tests."""
    return c_n_marked()


def is_drained(comm) -> bool:
    """True if no message of a marked communicator is in flight; for tests."""
    cdef cbool drained
    cdef CComm* own = marked(comm)
    with nogil:
        drained = own.notices.get().is_drained()
    return drained


cdef CComm* marked(comm) except NULL:
    cdef CComm* found = c_find(handle(comm))
    if found == NULL:
        raise ValueError("this communicator is not marked")
    return found


def number_of(comm) -> int:
    """The number of a marked communicator; 0 for any other."""
    cdef CComm* found = c_find(handle(comm))
    return 0 if found == NULL else found.number()


def renew(comm, tuple settings):
    """Change a marked communicator's settings; see `mark`. Local: all ranks do so before the same call."""
    marked(comm).renew(settings_of(settings))


cdef Settings settings_of(tuple given):
    cdef Settings settings
    settings.min_nbytes, settings.strict, settings.names, settings.threads, settings.devices = given[:5]
    settings.plain_nbytes, settings.alike = given[5:]
    return settings


cdef OriginRef origin_of(comm, uint64_t key, side):
    cdef COrigin* origin = new COrigin()
    origin.rank, origin.size, origin.key = comm.Get_rank(), comm.Get_size(), key
    origin.python_ref = hold_python(side)
    return hold_origin(origin)


def mark(comm, tuple settings, uint64_t key, side) -> int:
    """Mark a communicator; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    settings : tuple
        (smallest message in bytes, ``strict``, whether rules look at names, whether all ranks have threads,
        whether MPI takes GPU memory, smallest whole buffer on GPUs that the engine carries even if it is not
        compressed, whether one rank's memory tells where all ranks' memory is)
    key : int
        Equal on all ranks, and different from other communicators' keys.
    side : object
        Python's side of the communicator.

    Returns
    -------
    int
        The communicator's number.
    """
    cdef Settings own = settings_of(settings)
    cdef Word mine = handle(comm)
    cdef OriginRef origin = origin_of(comm, key, side)
    cdef CComm* made = NULL
    cdef int error
    with nogil:
        error = c_mark(mine, own, origin, &made)
    check_mpi(error)
    return made.number()


def duplicate(comm, tuple settings, uint64_t key, side, bytes words):
    """Make a marked duplicate of a communicator, identified by ``words``; collective.

    Returns
    -------
    handle, number : int
    """
    cdef Settings own = settings_of(settings)
    cdef Word mine = handle(comm)
    cdef OriginRef origin = origin_of(comm, key, side)
    cdef CComm* made = NULL
    cdef string told = words
    cdef int error
    with nogil:
        error = c_duplicate(mine, own, origin, told, &made)
    check_mpi(error)
    return made.handle, made.number()


def find_duplicate(comm, bytes words):
    """Handle and key of a duplicate with these ``words`` that is in no error state, or None."""
    cdef string told = words
    cdef CComm* found = c_find_duplicate(handle(comm), told)
    return None if found == NULL else (found.handle, found.origin.get().key)


def share_duplicate(Word own):
    """Count one more user of a duplicate that was found; return its handle."""
    c_find(own).n_wrappers += 1
    return own


def duplicates_of(comm) -> list:
    """The numbers of the marked duplicates that were made of a communicator."""
    return list(c_duplicates_of(handle(comm)))


def side_of(uint64_t number):
    """Python's side of a marked communicator, or None if it has none yet."""
    return held_objects.get(number)


def lineage(uint64_t number):
    """The origin of a communicator: its parent, its ranks in the parent's numbering, and its own key.

    Returns
    -------
    parent : object or None
        The parent's Python side, or (number, lineage) if it has none yet; None without a parent.
    ranks : list of int
    rank, size, key : int
    """
    cdef shared_ptr[CComm] comm = find_by(number)
    if comm.get() == NULL:
        raise ValueError(f"there is no communicator {number}")
    return lineage_of(comm.get().origin)


cdef lineage_of(OriginRef origin):
    cdef const COrigin* own = origin.get()
    parent = None
    if own.parent.get() != NULL:
        number = own.parent.get().python_ref.get().number()
        parent = held_objects.get(number) or (number, lineage_of(own.parent))
    return parent, list(own.ranks), own.rank, own.size, own.key


def set_side(uint64_t number, side):
    """Set the Python side of a marked communicator, or of one that others were made from."""
    held_objects[number] = side


def place_of(uint64_t number):
    """The handle of a communicator, and the number of tags for its calls."""
    cdef shared_ptr[CComm] comm = find_by(number)
    if comm.get() == NULL:
        raise ValueError(f"there is no communicator {number}")
    return comm.get().handle, comm.get().tags.n()


def note_comm(comm):
    """Make an mpi4py object null when its communicator is freed with the one that it was made from."""
    note_object(handle(comm), <void*><uintptr_t>MPI._addressof(comm))


def drop_comm(comm, _address_of=MPI._addressof):
    """Forget an mpi4py object that ends. Compiled, so that no signal handler runs in ``__del__``."""
    drop_object(<void*><uintptr_t>_address_of(comm))


def why_broken(comm) -> str:
    """The reason for a communicator's error state; empty if it is in none."""
    cdef CComm* found = c_find(handle(comm))
    if found == NULL or not found.broken():
        return ""
    return found.why_broken().decode()


def accelerated_of(comm) -> int:
    """Calls of a marked communicator that did not go to MPI unchanged."""
    cdef CComm* found = c_find(handle(comm))
    return 0 if found == NULL else found.accelerated.load()
