"""Methods that `torch.compile` calls instead of tracing them, as it calls those of a backend in C++."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo import eval_frame

__all__ = ["untraced"]

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
_Class = TypeVar("_Class", bound=type)


def untraced(cls: _Class) -> _Class:
    """Have Dynamo neither inline the methods of a class nor compile their frames, nor those of callees.

    `torch.compiler.disable` does the same, but imports all of Dynamo, which takes seconds.
    """
    for member in vars(cls).values():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(function, FunctionType):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return cls
