"""`chop ui`."""

from __future__ import annotations

from pathlib import Path

from chop.cli.command import Command


def ui(folder: str = "runs", /, *, port: int = 8321, browser: bool | None = None) -> None:
    """Show all runs in a folder in a browser, and the progress of those that are running.

    [bold]Examples[/]

      chop ui

      chop ui /data/runs --port 0 --no-browser

    The list has every output folder of chop's commands below the folder, with its metric beside
    float, bits, size, duration and state. A click on a column sorts, ticked runs are compared side
    by side, command lines can be copied, and of an interrupted run the one that resumes it. A line
    opens the run's page, report.html. A run that goes on shows its finished points, a search its
    best so far, and both advance by themselves. The server listens on this machine alone, answers
    those alone who have the token of the address that is printed, reads nothing outside the folder,
    follows no links in it, and writes nothing. It needs pip install 'mase-chop[ui]'.

    Args:
        folder: with output folders of chop's commands, at most six levels below.
        port: of 127.0.0.1; 0 takes a free one.
        browser: open the address in the browser. Default: on a desktop, at a terminal.
    """
    from chop.report.ui.browser import has_desktop
    from chop.report.ui.server import serve

    serve(Path(folder).expanduser(), port, has_desktop() if browser is None else browser)


UI = Command(ui, is_slow=False)
