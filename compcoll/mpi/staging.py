"""Memory of a GPU, in calls that go to MPI unchanged.

mpi4py hands MPI the device's addresses, and an MPI that knows nothing of GPUs then reads them as the host's.
Where this one does not say that it takes them, such buffers go through the host: they are copied there, MPI
gets the copy, and what it wrote is copied back before the call returns. Nothing can be copied back after a
call that returns earlier, so a nonblocking or persistent one with a GPU's receive buffer is a `TypeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.devices import arrays
from compcoll.devices.preparation import wait_for_streams
from compcoll.devices.wrapping import on_device
from compcoll.mpi.buffers import on_gpu
from compcoll.operations import OPERATIONS, blocking_name

__all__ = ["BUFFERED", "NEIGHBOUR", "HostCopy", "Staged", "guard"]

#: Position of the argument that a blocking method writes to.
_WRITES = {
    **{operation.name: operation.written for operation in OPERATIONS.values() if operation.n_buffers},
    "Recv": 0,
    "Sendrecv_replace": 0,
    "Sendrecv": 3,
}


class HostCopy:
    """A buffer argument of a GPU's memory, copied to the host."""

    def __init__(self, spec: Any):
        array, *rest = spec if isinstance(spec, (list, tuple)) else (spec,)
        if arrays.is_torch(array):
            arrays.check_tensor(array)
        memory = on_device(array)
        if memory is None:
            raise BufferError(f"{type(array).__name__} on a GPU is not contiguous, or CuPy cannot reach it")
        self._memory, self._host = memory, np.asarray(memory)
        self.spec = [self._host, *rest] if rest else self._host

    def back(self) -> None:
        """Give the GPU's memory what MPI has written."""
        with self._memory.device.queue() as queue:
            queue.to_device(self._memory.address, self._host.view(np.uint8))


class Staged:
    """The arguments of one of mpi4py's methods, with copies on the host of what is on a GPU.

    Attributes
    ----------
    args, kwargs
        Arguments to call the method with.
    """

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None):
        blocking = blocking_name(name)
        written = _WRITES.get(blocking)
        given: dict[Any, Any] = {**dict(enumerate(args)), **(kwargs or {})}
        self._back: list[HostCopy] = []
        for key, value in given.items():
            if not on_gpu(value):
                continue
            writes = key in (written, "recvbuf") or (key == "buf" and written == 0)
            if name.endswith("_init") or (writes and name != blocking):
                raise TypeError(
                    f"{name} of a GPU's memory returns before it could be copied from or to the host, and "
                    "MPI does not say that it takes device memory: use host memory, or device_buffers=True "
                    "where MPI does"
                )
            copy = HostCopy(value)
            given[key] = copy.spec
            if writes:
                self._back.append(copy)
        self.args = [given[i] for i in range(len(args))]
        self.kwargs = {key: given[key] for key in kwargs or {}}

    def finish(self) -> None:
        """Give the GPU's memory what MPI has written."""
        for copy in self._back:
            copy.back()


def guard(*names: str) -> Callable[[type], type]:
    """Make these methods of mpi4py's class give MPI no memory of a GPU that it does not take.

    Those that a class defines itself stay as they are.
    """

    def decorate(cls: type) -> type:
        for name in names:
            if name not in vars(cls):
                setattr(cls, name, _guarded(cls, name))
        return cls

    return decorate


def _guarded(cls: type, name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(super(cls, self), name)
        if self._state.passes_gpu_memory:
            wait_for_streams(*args, *kwargs.values())
        if self._state.passes_gpu_memory or not any(map(on_gpu, (*args, *kwargs.values()))):
            return original(*args, **kwargs)
        staged = Staged(name, args, kwargs)
        result = original(*staged.args, **staged.kwargs)
        staged.finish()
        return result

    method.__name__ = name
    method.__doc__ = getattr(getattr(MPI.Intracomm, name, None), "__doc__", None)
    return method


def _forms(names: tuple[str, ...], of: type) -> list[str]:
    """These methods, with their nonblocking and persistent forms, as far as a class has them."""
    forms = (form for name in names for form in (name, f"I{name.lower()}", f"{name}_init"))
    return [form for form in forms if hasattr(of, form)]


NEIGHBOUR = _forms(tuple(name for name in OPERATIONS if name.startswith("Neighbor")), MPI.Topocomm)
#: Methods that take buffers, and that neither the layer serves nor `compcoll.Comm` has itself.
BUFFERED = _forms(("Bsend", "Rsend", "Scan", "Exscan"), MPI.Intracomm)
