"""Arguments and options that several subcommands share."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import click

import compcoll
from compcoll.core.sizes import nbytes_of

__all__ = ["Link", "Size", "codec_option", "ranks_option"]

_PREFIXES = {"m": 1e6, "g": 1e9, "t": 1e12}
#: A number, a prefix, and a unit: bytes if it is a capital B, else bits, in any spelling that is common.
_BANDWIDTH = re.compile(r"([0-9.]+)\s*([mgtMGT])(?:(B)|(?i:b|be|ige|bit|bits|))(?i:/s|ps|)")
#: Gb/s of InfiniBand: with four lanes, or under the name of a product.
_LINKS = {
    "fdr": 56,
    "edr": 100,
    "hdr": 200,
    "hdr100": 100,
    "hdr200": 200,
    "ndr": 400,
    "ndr200": 200,
    "ndr400": 400,
    "xdr": 800,
    "xdr800": 800,
}


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
    """A link's bandwidth, given by name or number; converted to its text and bytes per second.

    Letter case only matters in the unit B, for bytes; Ethernet's ``GBE`` counts bits.
    """

    name = "link"

    def convert(self, value, param, ctx) -> tuple[str, float]:
        nbytes = _LINKS.get(value.lower(), 0) * 1e9 / 8
        if found := _BANDWIDTH.fullmatch(value.strip()):
            number, prefix, capital = found.groups()
            with suppress(ValueError):
                nbytes = float(number) * _PREFIXES[prefix.lower()] / (1 if capital else 8)
        if not nbytes:
            what = "10gbe, 25Gb/s, hdr, or 1.25GB/s: a capital B counts bytes, a small one bits"
            self.fail(f"{value!r} is not a bandwidth such as {what}", param, ctx)
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
