"""The `chop` command line: one file per command group, which only parses arguments."""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = [
    "main",
]


def main() -> None:
    """Runs `chop`. Prints a deliberate error as one sentence and exits with code 2."""
    from chop.base.files.temporary import own_temporary_files
    from chop.base.installed import fitting_packages
    from chop.cli.app import app
    from chop.errors import ChopError, options_in_messages

    with options_in_messages(True):  # errors become texts below
        try:
            with fitting_packages(), own_temporary_files():
                app()
        except ChopError as error:
            _fail(type(error).__name__, str(error))
        except (OSError, MemoryError, RuntimeError, ImportError) as error:
            from chop.base.files.limits import reached_limit

            reason = reached_limit(error)
            if reason is None:
                raise
            _fail("Stopped", reason)


def _fail(name: str, message: str) -> NoReturn:
    """Prints an error message and exits with code 2."""
    from rich.console import Console
    from rich.text import Text

    from chop.base.tables import printable

    # The message may quote a file of others.
    message = "\n".join(map(printable, message.split("\n")))
    Console(stderr=True).print(Text.assemble((name, "bold red"), ": ", message))
    sys.exit(2)
