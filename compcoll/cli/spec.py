"""The option ``--codecs`` of several subcommands."""

from __future__ import annotations

import click

import compcoll

__all__ = ["codecs_option"]


class _Spec(click.ParamType):
    """A codec's spec, as the user wrote it."""

    name = "spec"

    def convert(self, value, param, ctx) -> str:
        try:
            compcoll.codec(value)
        except (TypeError, ValueError) as error:
            self.fail(str(error), param, ctx)
        return value


def codecs_option(help: str):
    """A repeatable option whose specs `compcoll.codec` takes."""
    return click.option("-c", "--codecs", multiple=True, type=_Spec(), help=f"{help} Repeatable.")
