"""The `chop` command: one file per command group, no logic."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `chop`: an error raised on purpose is one sentence, exit code 2."""
    from chop.cli.app import app
    from chop.errors import ChopError

    try:
        app()
    except ChopError as error:
        from rich.console import Console

        Console(stderr=True).print(f"[bold red]{type(error).__name__}[/]: {error}", highlight=False)
        sys.exit(2)
