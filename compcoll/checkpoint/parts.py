"""Arrays from the files of several ranks: which of them a rank wants, and how it puts them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Pieces", "assembled", "wanted"]

#: The files that an array comes from: the rank that saved it, and where the part begins that is wanted.
Pieces = list[tuple[int, dict[str, Any]]]


def wanted(
    headers: Mapping[int, dict[str, Any]], parts: Mapping[str, Any] | None, rank: int, size: int
) -> dict[str, Pieces]:
    """The pieces of each array that a rank gets; ValueError where they cannot be had."""
    ranks = len(headers)
    saved: dict[str, Pieces] = {}
    for owner, header in sorted(headers.items()):
        for one in header["arrays"]:
            saved.setdefault(one["name"], []).append((owner, one))
    if parts is None and ranks == size:
        return {one["name"]: [(rank, one)] for one in headers[rank]["arrays"]}
    result: dict[str, Pieces] = {}
    for name in saved if parts is None else parts:
        if name not in saved:
            raise ValueError(f"there is no array {name!r}; there are {', '.join(sorted(saved))}")
        whole = saved[name][0][1]["whole"]
        if whole is None:
            raise ValueError(
                f"{name!r} was saved by {ranks} ranks, each its own, and not as a compcoll.checkpoint.Part"
            )
        if parts is None:
            begin, end = rank * whole[0] // size, (rank + 1) * whole[0] // size
            offset, shape = (begin, *[0] * (len(whole) - 1)), (end - begin, *whole[1:])
        else:
            offset, shape = parts[name]
        if len(offset) != len(whole) or any(
            o < 0 or n < 0 or o + n > most for o, n, most in zip(offset, shape, whole, strict=True)
        ):
            raise ValueError(f"{shape} at {offset} does not lie in {name!r}, of shape {tuple(whole)}")
        result[name] = [
            (owner, {**one, "wanted": (offset, shape)})
            for owner, one in saved[name]
            if all(
                max(o, p) < min(o + n, p + m)
                for o, n, p, m in zip(offset, shape, one["offset"], one["shape"], strict=True)
            )
        ] or [(saved[name][0][0], {**saved[name][0][1], "wanted": (offset, shape)})]
    return result


def assembled(name: str, pieces: Pieces, values: Mapping[int, dict[str, np.ndarray]]) -> np.ndarray:
    """An array from its pieces; ValueError where these are not all of it."""
    owner, one = pieces[0]
    if "wanted" not in one:
        return values[owner][name]
    offset, shape = one["wanted"]
    array, covered = np.empty(shape, values[owner][name].dtype), np.zeros(shape, bool)
    for owner, one in pieces:
        begins = [max(o, p) for o, p in zip(offset, one["offset"], strict=True)]
        ends = [
            min(o + n, p + m) for o, n, p, m in zip(offset, shape, one["offset"], one["shape"], strict=True)
        ]
        if all(b < e for b, e in zip(begins, ends, strict=True)):
            into = tuple(slice(b - o, e - o) for b, e, o in zip(begins, ends, offset, strict=True))
            taken = tuple(slice(b - p, e - p) for b, e, p in zip(begins, ends, one["offset"], strict=True))
            array[into], covered[into] = values[owner][name][taken], True
    if not covered.all():
        raise ValueError(
            f"{name!r} was not saved whole: {(~covered).sum()} values of {shape} at {offset} are missing"
        )
    return array
