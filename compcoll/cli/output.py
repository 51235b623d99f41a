"""Tables that subcommands print, and files that they write: checked before the work begins."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["check_folder", "check_writable", "wide_console"]


def check_writable(path: Path | None, what: str, hint: str = "") -> None:
    """ClickException where a file cannot be written; the file is left as it is."""
    if path is None:
        return
    try:
        there = path.exists()
        path.open("a").close()
        if not there:
            path.unlink(missing_ok=True)  # which another rank may have done
    except OSError as error:
        more = f"; {hint}" if hint else ""
        raise click.ClickException(f"{what} cannot be written to {path}: {error.strerror}{more}") from None


def check_folder(path: Path, what: str, hint: str = "") -> None:
    """ClickException where no file can be written into a folder, which is made."""
    with suppress(OSError):  # of which the next line tells
        path.mkdir(parents=True, exist_ok=True)
    check_writable(path / ".compcoll", what, hint)


def wide_console() -> Console:
    """A console as wide as the terminal, and wide enough for a table in a pipe or a file."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)
