"""Types of what other modules use."""

from typing import Any

import numpy as np

RUN: int
LOOP: int

class Layout:
    kind: int
    nbytes: int
    count: int
    stride: int
    child: Layout

class StridedBlock:
    dtype: np.dtype
    size: int
    nbytes: int
    itemsize: int
    def __init__(
        self,
        layout: Layout,
        origin: int,
        dtype: np.dtype,
        keep: object,
        first: int = ...,
        size: int | None = ...,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice) -> StridedBlock: ...
    def view(self, dtype: Any) -> StridedBlock: ...
    def copy(self) -> np.ndarray: ...
    def put(self, values: np.ndarray) -> None: ...

def run(nbytes: int) -> Layout: ...
def loop(count: int, stride: int, child: Layout) -> Layout: ...
def runs(offsets: np.ndarray, nbytes: np.ndarray) -> Layout: ...
def parts(offsets: np.ndarray, children: list[Layout]) -> Layout: ...
