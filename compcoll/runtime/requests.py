"""Work that a device does while the event loop goes on."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

__all__ = ["Lease", "Request", "Steps"]

#: A generator of the events after each of which it goes on; it returns the result.
Steps = Generator[Any, None, Any]


class Request:
    """The result of some steps, the first of which is taken at once.

    Without steps it waits for `begin`.
    """

    __slots__ = ("_error", "_event", "_result", "_steps")

    def __init__(self, steps: Steps | None = None):
        self._steps, self._event = steps, None
        self._result: tuple[Any] | None = None
        self._error: Exception | None = None
        if steps is not None:
            self.begin(steps)

    def begin(self, steps: Steps) -> None:
        """Take the first of these steps."""
        self._steps = steps
        self._advance()

    def fail(self, error: Exception) -> None:
        """There will be no result."""
        self._error = error

    def poll(self) -> tuple[Any] | None:
        """(result,), or None as long as there is none; raises what the steps raised."""
        while self._error is None and self._result is None:
            if self._event is None or not self._event.done:
                return None
            self._advance()
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self) -> Any:
        """The result."""
        while (result := self.poll()) is None:
            self._event.synchronize()  # type: ignore[attr-defined]
        return result[0]

    def _advance(self) -> None:
        try:
            self._event = next(self._steps)  # type: ignore[arg-type]
        except StopIteration as stop:
            self._result = (stop.value,)
        except Exception as error:
            self._error = error


class Lease:
    """A queue that several requests share; the last one that leaves the context closes it."""

    def __init__(self, queue: Any, users: int):
        self.queue, self.users = queue, users

    def __enter__(self) -> Any:
        return self.queue

    def __exit__(self, *exc: object) -> None:
        self.users -= 1
        if not self.users:
            self.queue.close()
