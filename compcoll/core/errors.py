"""The exceptions that compcoll adds to Python's own."""


class FrameError(ValueError):
    """The bytes are not a sound frame: damaged, truncated, or of an unknown codec or version."""


class PolicyError(ValueError):
    """Ranks disagree about how their calls are compressed, in the fields named; raised on all of them."""


class MismatchError(RuntimeError):
    """Ranks have made calls that do not match; raised on every rank that notices."""


class DeviceBufferError(RuntimeError):
    """MPI does not take device memory, and ``device_buffers=True`` asked for it; raised on every rank."""


class FallbackError(RuntimeError):
    """A call with ``strict=True`` could not be carried out as its policy says."""
