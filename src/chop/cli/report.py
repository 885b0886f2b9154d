"""`chop report`."""

from __future__ import annotations

from pathlib import Path

from chop.cli.command import Command


def report(runs: tuple[str, ...], /, *, out: Path | None = None, open: bool = False) -> Path:
    """Rebuild the report page of a run, or put several runs on one page.

    [bold]Examples[/]

      chop report runs/compress --open

      chop report runs/first runs/second --out both.html

    Every command that writes tables also writes their page: report.html in --out, one file that a
    browser opens without a network. This command builds it from manifest.json and report.json, and
    draws the curves of several runs on the same axes. Runs of an earlier version show tables only.

    Args:
        runs: output folders of chop's commands.
        out: file of the page. Default: report.html in the folder of the run, for several runs in
            the current folder.
        open: show the page in the browser.
    """
    from chop.errors import ConfigError
    from chop.report.page.files import write_page
    from chop.report.page.page import PAGE
    from chop.report.report import say

    if out is not None and out.expanduser().is_dir():
        raise ConfigError(f"--out: '{out}' is a folder, expected a file such as '{out / PAGE}'.")
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"--out: '{out}': expected an HTML file, such as '{out.with_suffix('.html')}'."
        )
    folders = [Path(run).expanduser() for run in runs]
    path = write_page(folders, out or Path(folders[0] if len(runs) == 1 else "") / PAGE)
    count = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"
    say(f"Wrote {path} with {count}; open it in a browser.", is_whole=True)
    if open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    return path


REPORT = Command(report, is_slow=False)
