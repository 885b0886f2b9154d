"""Makes the site: `python -m docs.site`, or `make docs`.

python -m docs.site --out FOLDER      (default: src/chop/site, where `chop docs` looks)
python -m docs.site --no-reports      (without the pages of runs, which take a minute)
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from docs.site import links, reports
from docs.site.stage import stage

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "src/chop/site"
NOT_SERVED = (".buildinfo", "objects.inv", ".doctrees")
REPORTS = "docs/reports"
CAPTION = '<p class="caption" role="heading"'
"""What Sphinx writes above a part of the contents; ARIA asks for a level, too."""


def build(out: Path, with_reports: bool = True) -> list[str]:
    """Makes the site; that of an earlier call is replaced once the new one is whole.

    Args:
        out: its folder.
        with_reports: runs commands whose pages it shows.
    Returns: what is wrong with its links.

    Raises:
        SystemExit: Sphinx found something wrong.
    """
    from sphinx.cmd.build import build_main

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as name:
        work = Path(name)
        shown = reports.made(work / "runs", work / "pages") if with_reports else {}
        stage(work / "source", shown)
        options = ["-W", "--keep-going", "-q", "-b", "html", "-c", str(HERE)]
        options += ["-d", str(work / "doctrees"), str(work / "source"), str(work / "site")]
        if code := build_main(options):
            raise SystemExit(code)
        for file in NOT_SERVED:
            (work / "site" / file).unlink(missing_ok=True)
        for page in (work / "site").rglob("*.html"):
            page.write_text(page.read_text().replace(CAPTION, f'{CAPTION} aria-level="2"'))
        if shown:
            shutil.copytree(work / "pages", work / "site" / REPORTS)
        wrong = links.problems(work / "site")
        if not wrong:
            shutil.rmtree(out, ignore_errors=True)
            (work / "site").rename(out)
    return wrong


def main() -> int:
    """Makes the site and says where it is; 1 where a link leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--no-reports", action="store_true")
    given = parser.parse_args()
    out = given.out.resolve()
    wrong = build(out, not given.no_reports)
    sys.stdout.write("".join(f"{text}\n" for text in wrong))
    if not wrong:
        sys.stdout.write(f"{out / 'index.html'}: chop docs opens it.\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
