"""`chop docs`."""

from __future__ import annotations

from pathlib import Path

from chop.cli.command import Command

SITE = Path(__file__).resolve().parents[1] / "site"
"""Output folder of `make docs`, which wheels include."""


def docs(*, path: bool = False) -> Path:
    """Open the documentation of this installation in a browser.

    [bold]Examples[/]

      chop docs

      chop docs --path

    Args:
        path: print the path of the first page instead of opening it.
    """
    from chop.errors import UnavailableError
    from chop.report.report import say

    first = SITE / "index.html"
    if not first.is_file():
        raise UnavailableError(
            "this installation has no documentation. Build it with `make docs` in a clone of the "
            "repository, or read the same pages as Markdown, from docs/index.md there."
        )
    say(str(first), is_whole=True)
    if not path:
        import webbrowser

        webbrowser.open(first.as_uri())
    return first


DOCS = Command(docs, is_slow=False)
