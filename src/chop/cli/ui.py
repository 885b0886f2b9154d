"""`chop ui`."""

from __future__ import annotations

from pathlib import Path

from chop.cli.command import Command


def ui(folder: str = "runs", /, *, port: int = 8321, browser: bool | None = None) -> None:
    """Show all runs in a folder in a browser, with the progress of running ones.

    [bold]Examples[/]

      chop ui

      chop ui /data/runs --port 0 --no-browser

    The list has every output folder of chop's commands below the folder, with metric, float metric,
    bits, size, duration and state. Click a column to sort; tick runs to compare them side by side;
    copy command lines, including the one that resumes an interrupted run. Click a run to open its
    report.html. Running sweeps show finished points, searches their best so far; both update by
    themselves. The server listens on this machine only, requires the token in the printed address,
    reads nothing outside the folder, follows no links, and writes nothing. Needs pip install
    'mase-chop[ui]'.

    Args:
        folder: folder with output folders of chop's commands, at most six levels below.
        port: port on 127.0.0.1; 0 picks a free one.
        browser: open the address in the browser. Default: on a desktop, at a terminal.
    """
    from chop.report.ui.browser import has_desktop
    from chop.report.ui.server import serve
    from chop.runs.interrupt import with_interruption_note

    with with_interruption_note(lambda: "the server has stopped."):
        serve(Path(folder).expanduser(), port, has_desktop() if browser is None else browser)


LOCAL_ONLY = (
    "The server listens on this machine only. To see it from another machine, run there: ssh -L "
    "PORT:127.0.0.1:PORT THIS-MACHINE, with the port in the address that chop ui prints (8321). "
    "Then open this address there."
)
UI = Command(
    ui,
    is_slow=False,
    advice=dict.fromkeys(
        ("--host", "--ip", "--address", "--addr", "--bind", "--listen", "--server-name", "--share"),
        LOCAL_ONLY,
    ),
)
