"""Arguments and options that several subcommands have, spelt alike."""

from __future__ import annotations

from typing import Any

import click

import compcoll
from compcoll.core.sizes import nbytes_of
from compcoll.operations import ALGORITHMS

__all__ = ["Operation", "Size", "codec_option", "ranks_option"]


class Operation(click.ParamType):
    """A collective that is accelerated, in upper or lower case; its method's name."""

    name = "operation"

    def convert(self, value, param, ctx) -> str:
        names = {name.lower(): name for name in ALGORITHMS if name not in ("Send", "Recv", "Sendrecv")}
        if value.lower() not in names:
            self.fail(f"{value!r} is not one of {', '.join(names.values())}", param, ctx)
        return names[value.lower()]


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
    """``--codec``, whose specs `compcoll.codec` takes, and those of a policy that make sense besides."""
    return click.option("-c", "--codec", metavar="SPEC", type=_Spec(also), help=help, **more)


def ranks_option(least: int, default: int | None, help: str):
    """``-n``, the number of ranks."""
    return click.option(
        "-n",
        "--ranks",
        type=click.IntRange(least),
        default=default,
        show_default=default is not None,
        help=help,
    )
