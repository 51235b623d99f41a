"""``compcoll preload``."""

from __future__ import annotations

import click

from compcoll.preload import library_path


@click.command()
def command() -> None:
    """Print the path of the library that accelerates programs in C or Fortran, for LD_PRELOAD.

    `compcoll run` sets it by itself.
    """
    try:
        click.echo(library_path())
    except OSError as error:
        raise click.ClickException(str(error)) from None
