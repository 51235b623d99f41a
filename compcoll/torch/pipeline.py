"""Threads in which gradients and parameters travel while other layers compute."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

__all__ = ["Pipeline", "pipeline_of"]


class Pipeline:
    """Threads, which take gradients in their order: one adds up inside nodes, one between them, one gathers.

    Waiting for a collective in a thread keeps the order of calls the same on all ranks.
    """

    def __init__(self) -> None:
        self._threads = [ThreadPoolExecutor(1, f"compcoll-{name}") for name in ("add", "reduce", "gather")]
        self._streams: dict[tuple[int, torch.device], Any] = {}
        self._error: BaseException | None = None

    def submit(
        self, stages: Sequence[Callable[[Any], Any]], device: torch.device
    ) -> torch.futures.Future[torch.Tensor]:
        """The future of the last stage's value; each is given the one before. An error ends all."""
        cuda = device.type == "cuda"
        inference = torch.is_inference_mode_enabled()  # a thread has a mode of its own
        result: torch.futures.Future = torch.futures.Future(devices=[device] if cuda else [])

        def run(stage: int, value: Any, after: Any) -> None:
            try:
                if self._error is not None:
                    raise RuntimeError(f"an earlier exchange failed: {self._error}") from self._error
                with torch.inference_mode(inference), torch.no_grad(), self._stream(stage, device, after):
                    given, value = value, stages[stage](value)
                    if cuda:  # of another stream, which must not write to its memory meanwhile
                        for tensor in [given] if isinstance(given, torch.Tensor) else given or ():
                            tensor.record_stream(torch.cuda.current_stream(device))
                    event = torch.cuda.current_stream(device).record_event() if cuda else None
                    if stage + 1 == len(stages):
                        result.set_result(value)
                    else:
                        self._threads[stage + 1].submit(run, stage + 1, value, event)
            except BaseException as error:
                self._error = self._error or error
                result.set_result(error)

        before = torch.cuda.current_stream(device).record_event() if cuda else None
        self._threads[0].submit(run, 0, None, before)
        return result.then(_value_or_raise)

    def _stream(self, stage: int, device: torch.device, after: Any) -> Any:
        """A context in whose stream of its own work comes after an event."""
        if device.type != "cuda":
            return nullcontext()
        stream = self._streams.setdefault((stage, device), torch.cuda.Stream(device))
        stream.wait_event(after)
        return torch.cuda.stream(stream)


def _value_or_raise(future: torch.futures.Future) -> torch.Tensor:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


_of_groups: WeakKeyDictionary[dist.ProcessGroup, Pipeline] = WeakKeyDictionary()


def pipeline_of(group: dist.ProcessGroup) -> Pipeline:
    """The pipeline of all whose frames travel in a group."""
    if group not in _of_groups:
        _of_groups[group] = Pipeline()
    return _of_groups[group]
