"""Results of a device's work, which come while the engine goes on."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

__all__ = ["DeviceFuture", "Last", "Steps"]

#: A generator of the events after each of which it goes on; it returns the result.
Steps = Generator[Any, None, Any]


class Last:
    """An event behind the last operation that a queue is given: then there are only results to look at.

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


class DeviceFuture:
    """The result of some steps, the first of which is taken at once, or by `begin`.

    It is itself an event, and ``yield from`` it gives other steps its result.
    """

    __slots__ = ("_ended", "_error", "_event", "_result", "_steps")

    def __init__(self, steps: Steps | None = None):
        self._steps, self._event, self._result = steps, None, None
        self._error: Exception | None = None
        self._ended = False
        if steps is not None:
            self._advance()

    def __iter__(self) -> Steps:
        yield self
        return self.result()

    @property
    def event(self) -> Any:
        """The event that is waited for; None before `begin`, and where nothing is left to wait for."""
        event = self._event
        while type(event) is DeviceFuture and not event._ended:
            event = event._event
        return event

    @property
    def done(self) -> bool:
        """Whether there is a result, or an error."""
        while not self._ended:
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
        self._error, self._ended = error, True

    def result(self) -> Any:
        """The result of one that is done; raises what its steps raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def _advance(self, problem: Exception | None = None) -> None:
        """Take the next step, or raise there what befell the event before it."""
        assert self._steps is not None
        try:
            self._event = next(self._steps) if problem is None else self._steps.throw(problem)
        except StopIteration as stop:
            self._result, self._ended = stop.value, True
        except Exception as error:
            self.fail(error)
