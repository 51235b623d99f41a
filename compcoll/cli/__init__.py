"""The command ``compcoll``: one subcommand a file, each importing what it needs when it runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

import compcoll
from compcoll.core.names import did_you_mean

__all__ = ["main"]

#: Modules of this package that hold a click command named ``command``.
COMMANDS = ("bench", "codec", "info", "report", "run", "tune")


class Commands(click.Group):
    """Finds a subcommand in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return import_module(f"compcoll.cli.{name}").command if name in COMMANDS else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            ctx.fail(error.message.rstrip(".") + did_you_mean(args[0], COMMANDS))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(compcoll.__version__, prog_name="compcoll")
def main() -> None:
    """MPI collectives made faster by compressing what goes over the wire."""
