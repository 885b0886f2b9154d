"""`chop docs`."""

from __future__ import annotations

from pathlib import Path

from chop.cli.command import Command

SITE = Path(__file__).resolve().parents[1] / "site"
"""Where `make docs` puts the site, with which a wheel is then built."""


def docs(*, path: bool = False) -> Path:
    """Open the documentation in a browser, from files of this installation.

    [bold]Examples[/]

      chop docs

      chop docs --path

    Args:
        path: print where its first page is, and open nothing.
    """
    from chop.errors import UnavailableError
    from chop.report.report import say

    first = SITE / "index.html"
    if not first.is_file():
        raise UnavailableError(
            "the documentation is not part of this installation: `make docs` in a clone of the "
            "repository builds it; docs/index.md there lists the same pages as Markdown."
        )
    say(str(first), is_whole=True)
    if not path:
        import webbrowser

        webbrowser.open(first.as_uri())
    return first


DOCS = Command(docs, is_slow=False)
