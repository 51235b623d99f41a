"""The table of compiled codecs; see the docstrings in _cpu.pyx."""

from typing import Any

def __getattr__(name: str) -> Any: ...
