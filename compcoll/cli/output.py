"""Tables that subcommands print, and checks, before the work begins, that files can be written."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["check_folder", "check_writable", "wide_console"]


def check_writable(path: Path | None, what: str, hint: str = "") -> None:
    """Raise ClickException if a file cannot be written; the file is not changed."""
    if path is None:
        return
    try:
        there = path.exists()
        path.open("a").close()
        if not there:
            path.unlink(missing_ok=True)  # another rank may have removed it
    except OSError as error:
        more = f"; {hint}" if hint else ""
        raise click.ClickException(f"{what} cannot be written to {path}: {error.strerror}{more}") from None


def check_folder(path: Path, what: str, hint: str = "") -> None:
    """Make a folder; raise ClickException if no file can be written into it."""
    with suppress(OSError):  # the next line reports it
        path.mkdir(parents=True, exist_ok=True)
    check_writable(path / ".compcoll", what, hint)


def wide_console() -> Console:
    """A console as wide as the terminal, and wide enough for a table in a pipe or a file."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)
