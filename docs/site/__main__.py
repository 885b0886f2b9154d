"""Makes the site: `python -m docs.site`, or `make docs`.

python -m docs.site --out FOLDER      (default: src/chop/site, where `chop docs` looks)
python -m docs.site --no-runs         (without pages of runs and outputs of notebooks)

The command first prints how many minutes it will take, then each step. Executed notebooks stay in
`build/notebooks` until they or chop change.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from chop.base.files import atomic_folder
from chop.base.files.temporary import scratch_folder
from docs.site import execute, links, notebooks, reports
from docs.site.progress import Progress, minutes
from docs.site.stage import stage

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "src/chop/site"
CACHE = HERE.parents[1] / "build/notebooks"
SPHINX_SECONDS = 40.0
"""Estimated time of Sphinx on one core, without runs and notebooks."""
NOT_SERVED = (".buildinfo", "objects.inv", ".doctrees")
REPORTS = "docs/reports"
CAPTION = '<p class="caption" role="heading"'
"""Caption of a part of the contents as Sphinx writes it, without the level that ARIA requires."""
LONG = re.compile(r'<span class="pre">(?=[^<]{24,}<)')
"""A word of code that a narrow column has to break."""


def build(out: Path, with_runs: bool = True, progress: Progress | None = None) -> list[str]:
    """Makes the site; that of an earlier call is replaced once the new one is whole.

    Args:
        out: its folder.
        with_runs: runs the commands whose pages it shows, and the notebooks.
        progress: prints each step. Default: to standard output.
    Returns: what is wrong with its links.

    Raises:
        SystemExit: Sphinx found something wrong.
    """
    from sphinx.cmd.build import build_main

    progress = progress or Progress()
    made = _notebooks() if with_runs else {}
    _announce(progress, out, made)
    with scratch_folder("docs") as work:
        report_lines, executed = {}, {}
        if with_runs:
            report_lines = reports.made(work / "runs", work / "pages", progress.step)
            executed = execute.executed(made, CACHE, progress.step)
        progress.step(f"pages by Sphinx, {minutes(SPHINX_SECONDS)} or less")
        stage(work / "source", report_lines, executed)
        options = ["-W", "--keep-going", "-q", "-b", "html", "-c", str(HERE)]
        options += ["-d", str(work / "doctrees"), str(work / "source"), str(work / "site")]
        if code := build_main(options):
            raise SystemExit(code)
        progress.step("links of all pages")
        for file in NOT_SERVED:
            (work / "site" / file).unlink(missing_ok=True)
        for page in (work / "site").rglob("*.html"):
            text = page.read_text().replace(CAPTION, f'{CAPTION} aria-level="2"')
            page.write_text(LONG.sub('<span class="pre long">', text))
        if report_lines:
            shutil.copytree(work / "pages", work / "site" / REPORTS)
        wrong = links.problems(work / "site")
        if not wrong:
            with atomic_folder(out) as fresh:
                shutil.copytree(work / "site", fresh, dirs_exist_ok=True)
    return wrong


def _notebooks() -> dict[str, execute.Notebook]:
    return {
        notebooks.get_name(script): notebooks.notebook(script) for script in notebooks.scripts()
    }


def _announce(progress: Progress, out: Path, made: Mapping[str, execute.Notebook]) -> None:
    """Prints the task and about how long it takes."""
    what, seconds = [f"the site in {out}"], SPHINX_SECONDS
    if made:
        times = execute.times(made, CACHE)
        ran = len(made) - len(times)
        cached = f", {ran} more from the cache" * bool(ran)
        what += [f"with pages of {len(reports.RUNS)} runs, {len(times)} notebooks to run{cached}"]
        seconds += reports.SECONDS + sum(times.values()) / execute.PROCESSES
    progress.announce(", ".join(what), seconds)


def main() -> int:
    """Makes the site and says where it is; 1 where a link leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--no-runs", action="store_true")
    given = parser.parse_args()
    out = given.out.resolve()
    wrong = build(out, not given.no_runs)
    sys.stdout.write("".join(f"{text}\n" for text in wrong))
    if not wrong:
        sys.stdout.write(f"{out / 'index.html'}: chop docs opens it.\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
