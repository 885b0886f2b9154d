"""Pages of runs for the site: small runs of four commands, each in seconds."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from docs.site.progress import OnLine

RUNS: Mapping[str, str] = {
    "demo": "chop compress --model vit --limit 400 --formats 8.auto,6.auto,4.auto,4.2 "
    "--qat-epochs 1 --max-drop 0.05 --keep-best --bench-seconds 0.2",
    "search": "chop search precision --model mlp --limit 400 --trials 30 --budget bits=5",
    "emit": "chop emit --model mlp --no-synthesis --samples 20",
    "language-model": "chop compress --model gpt-tiny --limit 40 --max-length 64 --max-drop 0.1 "
    "--formats 8.auto,mxint:width=4,mxfp:width=4 --qat-epochs 0 --keep-best --bench-seconds 0 "
    "--samples 3",
}
"""Name of a page -> the command that leaves it."""
PAGE = "report.html"
TIMED = ("demo",)
"""Pages with speeds: their commands run alone."""
PROCESSES = 2
SECONDS = 60.0
"""Estimated time of all runs on two cores."""


def made(folder: Path, into: Path, on_line: OnLine = lambda line: None) -> dict[str, str]:
    """Runs the commands and copies their pages.

    Without circuit simulators `chop emit` writes no page. A line says so.

    Args:
        folder: output folder of the runs.
        into: output folder of the pages.
        on_line: receives a line for each finished run. Default: does nothing.
    Returns: a line of Markdown for each page.
    Raises:
        SystemExit: another command failed.
    """
    into.mkdir(parents=True, exist_ok=True)
    lines, done = {}, iter(range(1, len(RUNS) + 1))

    def run(name: str) -> Path | None:
        page = _run(RUNS[name], folder / name)
        on_line(
            f"run {next(done)} of {len(RUNS)}: {RUNS[name].partition(' --')[0]}, for {name}.html"
        )
        return page

    pages = {name: run(name) for name in TIMED}
    others = [name for name in RUNS if name not in TIMED]
    with ThreadPoolExecutor(PROCESSES) as pool:
        pages |= zip(others, pool.map(run, others), strict=True)
    for name, command in RUNS.items():
        page = pages[name]
        if page is None and name != "emit":
            raise SystemExit(f"{command} failed.")
        if page is None:
            sys.stdout.write(f"skipped: the page of {command}\n")
            continue
        shutil.copyfile(page, into / f"{name}.html")
        lines[name] = f"`{command}`."
    return lines


def _run(command: str, out: Path) -> Path | None:
    """The page says where its run is: in a relative folder, as a reader's is."""
    words = [sys.executable, "-m", "chop.cli", "-q", *shlex.split(command)[1:]]
    words += ["--out", f"{out.parent.name}/{out.name}"]
    here = out.parent.parent
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stdout.write(done.stderr[-500:])
    pages = sorted(_pages(out))
    return pages[0] if pages and not done.returncode else None


def _pages(out: Path) -> Iterator[Path]:
    return out.rglob(PAGE)
