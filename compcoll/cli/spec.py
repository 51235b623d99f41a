"""Arguments and options that several subcommands share."""

from __future__ import annotations

import re
from typing import Any

import click

import compcoll
from compcoll.core.sizes import nbytes_of

__all__ = ["Link", "Size", "codec_option", "ranks_option"]

_UNITS = {"gbe": 1e9 / 8, "Gb/s": 1e9 / 8, "Mb/s": 1e6 / 8, "GB/s": 1e9, "MB/s": 1e6}
#: InfiniBand with four lanes.
_LINKS = {"fdr": 7e9, "edr": 12.5e9, "hdr": 25e9, "ndr": 50e9, "xdr": 100e9}


class Size(click.ParamType):
    """A number of bytes such as 65536, 64K or 1M."""

    name = "size"

    def __init__(self, least: int = 0):
        self._least = least

    def convert(self, value, param, ctx) -> int:
        try:
            nbytes = nbytes_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if nbytes < self._least:
            self.fail(f"{value} is less than {self._least}", param, ctx)
        return nbytes


class Link(click.ParamType):
    """A link's bandwidth, given by name or number; converted to its text and bytes per second."""

    name = "link"

    def convert(self, value, param, ctx) -> tuple[str, float]:
        number = re.split("[^0-9.]", value)[0]
        try:
            nbytes = float(number) * _UNITS[value[len(number) :].strip()] if number else _LINKS[value]
        except (KeyError, ValueError):
            nbytes = 0.0
        if not nbytes:
            self.fail(f"{value!r} is not a bandwidth such as 10gbe, 25Gb/s, 1.25GB/s or hdr", param, ctx)
        return value, nbytes


class _Spec(click.ParamType):
    """A codec's spec, as the user wrote it."""

    name = "spec"

    def __init__(self, also: tuple[str, ...]):
        self._also = also

    def convert(self, value, param, ctx) -> str:
        try:
            if value not in self._also:
                compcoll.codec(value)
        except (TypeError, ValueError) as error:
            self.fail(str(error), param, ctx)
        return value


def codec_option(help: str, *, also: tuple[str, ...] = (), **more: Any):
    """Option ``--codec`` for specs of `compcoll.codec` and for policies' words that make sense there."""
    return click.option("-c", "--codec", metavar="SPEC", type=_Spec(also), help=help, **more)


def ranks_option(least: int, default: int | None, help: str):
    """``-n``, the number of ranks."""
    shown = default is not None
    return click.option(
        "-n", "--ranks", type=click.IntRange(least), default=default, show_default=shown, help=help
    )
