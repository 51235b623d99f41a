"""Futures of operations: those that DDP and others wait for in place of a `Work`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from threading import Thread
from typing import Any

import torch

from compcoll.torch.gpu import future_devices

__all__ = ["Future"]


class _Failure:
    """The value of a future that ends with an error.

    C++ pickles a value to find its tensors, and crashes where there are none, as in torch's own
    `torch.futures.Future.set_exception`; so that raises the error, too.
    """

    def __init__(self, error: BaseException):
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error

    def raise_error(self) -> None:
        """What Python gets where it asks for the value."""
        raise self.error


class Future(torch.futures.Future):
    """A future that knows whether Python is called at its end.

    One of tensors on GPUs keeps the order of streams: who waits for it, and callbacks, have their current
    streams come after the operation.
    """

    # From 2.14 on torch hands out another object for the same future, and nobody sees what it is asked for.
    calls_python = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)

    def __init__(self, result: Sequence[torch.Tensor]):
        super().__init__(devices=future_devices(result))

    def then(self, callback):
        self.calls_python = True
        return super().then(callback)

    def add_done_callback(self, callback) -> None:
        self.calls_python = True
        super().add_done_callback(callback)

    def tell(self, result: Any, error: BaseException | None, ends: Sequence[Any]) -> None:
        """Complete it; what Python runs then may wait for operations, so not in this thread."""
        if self.calls_python:
            given = result, error, ends
            Thread(target=self._complete, args=given, name="compcoll-future", daemon=True).start()
        else:
            self._complete(result, error, ends)

    def _complete(self, result: Any, error: BaseException | None, ends: Sequence[Any]) -> None:
        if error is not None:
            self._set_unwrap_func(_Failure.raise_error)
            self.set_result(_Failure(error))
            return
        with ExitStack() as stack:  # it is done when these streams are
            for end in ends:
                stack.enter_context(end.current())
            self.set_result(result)
