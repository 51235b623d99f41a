"""Work that a device does while the event loop goes on."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

__all__ = ["Last", "Lease", "Request", "Steps"]

#: A generator of the events after each of which it goes on; it returns the result.
Steps = Generator[Any, None, Any]


class Last:
    """An event behind the last that a queue is given: once it has come, there are only results to look at.

    Attributes
    ----------
    device : Device
    event : object
        The queue's.
    """

    __slots__ = ("device", "event")

    def __init__(self, queue: Any):
        self.device, self.event = queue.device, queue.event()

    @property
    def done(self) -> bool:
        """As the event's."""
        return self.event.done

    def synchronize(self) -> None:
        """As the event's."""
        self.event.synchronize()


class Request:
    """The result of some steps, the first of which is taken at once.

    Without steps it waits for `begin`, which ``start``, if it is given, brings about. It is itself an event,
    and ``yield from`` it gives other steps its result.
    """

    __slots__ = ("_error", "_event", "_result", "_start", "_steps")

    def __init__(self, steps: Steps | None = None, start: Callable[[], None] | None = None):
        self._steps, self._start, self._event = steps, start, None
        self._result: tuple[Any] | None = None
        self._error: Exception | None = None
        if steps is not None:
            self.begin(steps)

    def __iter__(self) -> Steps:
        yield self
        return self.wait()

    @property
    def event(self) -> Any:
        """What is waited for; None where nobody has begun it, or nothing is left to wait for."""
        event = self._event
        while type(event) is Request and not event._ended:
            event = event._event
        return event

    @property
    def last(self) -> Last | None:
        """What is waited for, where nothing is started behind it."""
        return self._event if type(self._event) is Last else None

    @property
    def _ended(self) -> bool:
        return self._result is not None or self._error is not None

    @property
    def done(self) -> bool:
        """Whether there is a result, or an error."""
        while self._error is None and self._result is None:
            try:
                if self._event is None or not self._event.done:
                    return False
            except Exception as error:
                self._advance(error)
            else:
                self._advance()
        return True

    def begin(self, steps: Steps) -> None:
        """Take the first of these steps."""
        self._steps = steps
        self._advance()

    def fail(self, error: Exception) -> None:
        """There will be no result."""
        self._error = error

    def poll(self) -> tuple[Any] | None:
        """(result,), or None as long as there is none; raises what the steps raised."""
        if not self.done:
            return None
        if self._error is not None:
            raise self._error
        return self._result

    def synchronize(self) -> None:
        """Wait for the result, or an error."""
        while not self.done:
            if self._event is not None:
                try:
                    self._event.synchronize()
                except Exception as error:
                    self._advance(error)
            elif self._start is not None:
                self._start()
            else:
                raise RuntimeError("a request that nobody begins has no result")

    def wait(self) -> Any:
        """The result."""
        self.synchronize()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result[0]

    def _advance(self, problem: Exception | None = None) -> None:
        """Take the next step, or raise what befell the event before it there."""
        assert self._steps is not None
        try:
            self._event = next(self._steps) if problem is None else self._steps.throw(problem)
        except StopIteration as stop:
            self._result = (stop.value,)
        except Exception as error:
            self._error = error


class Lease:
    """A queue that several requests share; the last one that leaves the context closes it.

    ``event`` is behind what was started for all of them.
    """

    def __init__(self, queue: Any, users: int):
        self.queue, self.users = queue, users
        self.event: Any = None

    def __enter__(self) -> Any:
        return self.queue

    def __exit__(self, *exc: object) -> None:
        self.users -= 1
        if not self.users:
            self.queue.close()
