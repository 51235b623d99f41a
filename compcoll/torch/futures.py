"""Futures of operations, which DDP and others wait for in place of a `Work`."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock, RLock, Thread
from typing import Any

import torch

from compcoll.engine.finalize import before_finalize
from compcoll.torch.gpu import future_devices
from compcoll.torch.phases import in_phase, is_backward

__all__ = ["Future"]

#: Threads that call callbacks: Python ends a process whose thread comes back from C++ after all else.
_callers: list[Thread] = []
_lock = Lock()


def _join_callers() -> None:
    while _callers:
        _callers.pop().join()


class _Failure:
    """The value of a future that ends with an error.

    C++ pickles a value to find its tensors, and crashes if the value has none; torch's own
    `torch.futures.Future.set_exception` has this fault. Pickling this value therefore raises the error.
    """

    def __init__(self, error: BaseException):
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error

    def raise_error(self) -> None:
        """Raise the error when Python reads the value."""
        raise self.error


class Future(torch.futures.Future):
    """A future that knows whether it has callbacks in Python."""

    # From 2.14 on torch hands out another object for the same future, and this one does not see callbacks.
    calls_python = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)

    def __init__(self, result: Sequence[torch.Tensor]):
        super().__init__(devices=future_devices(result))
        # Callbacks belong to the phase in which the future was made, whichever thread runs them.
        self._is_backward = is_backward()
        # Held while the future is completed without a thread of its own: no callback is added meanwhile.
        self._own = RLock()

    def then(self, callback):
        with self._own:
            self.calls_python = True
            return super().then(callback)

    def add_done_callback(self, callback) -> None:
        with self._own:
            self.calls_python = True
            super().add_done_callback(callback)

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Complete the future, in a thread of its own if it has callbacks in Python: they may wait."""
        with self._own:
            if not self.calls_python:
                self._complete(result, error)
                return
        thread = Thread(target=self._call, args=(result, error), name="compcoll-future", daemon=True)
        try:
            with _lock:
                thread.start()
                _callers[:] = [thread, *filter(Thread.is_alive, _callers)]
                before_finalize(_join_callers)
        except RuntimeError:  # no thread can be started; callbacks that do not wait work in this thread, too
            self._call(result, error)

    def _call(self, result: Any, error: BaseException | None) -> None:
        with in_phase(self._is_backward):
            self._complete(result, error)

    def _complete(self, result: Any, error: BaseException | None) -> None:
        if error is None:
            self.set_result(result)
            return
        self._set_unwrap_func(_Failure.raise_error)
        self.set_result(_Failure(error))
