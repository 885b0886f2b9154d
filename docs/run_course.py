"""Runs the commands of `course.md` with small settings, and writes the page with what they made.

python docs/run_course.py                    (all of them, some minutes)
python docs/run_course.py --only "bench"     (those with this text)

OUT/course.md is the page with the figures of this run; the numbers of small runs mean nothing.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "course.md"
ROW = re.compile(
    r"^\| (?P<what>[^|]+?) \| `(?P<command>(?:chop|python) [^`]+)` \| (?P<makes>.+?) \|$"
)
LINK = re.compile(r"\]\((?=[\w.])")
PICTURES = (".svg", ".png")
QUICK = "--quick --out {out}"
TEXTS = "--limit 100 --max-length 32 --epochs 1"
DIGITS = "--model mlp --limit 120"
SMALL = {
    "python examples/tutorial_1.py": "--out {out}",
    "python examples/tutorial_2.py": f"{TEXTS} --folder {{out}} --out {{out}}/rows.json",
    "python examples/tutorial_3.py": (
        f"{TEXTS} --formats 8.4,4.auto --qat 4.auto --out {{out}}/rows.json"
    ),
    "python examples/tutorial_4.py": f"{TEXTS} --out {{out}}",
    "python examples/tutorial_5.py": f"{QUICK} --limit 100",
    "python examples/tutorial_6.py": f"{QUICK} --limit 100",
    "python examples/tutorial_7.py": QUICK,
    "python examples/tutorial_8.py": QUICK,
    "python examples/tutorial_9.py": f"{QUICK} --device cpu",
    "python examples/tutorial_10.py": f"{QUICK} --rows 4",
    "python examples/lab_1.py": QUICK,
    "python examples/lab_2.py": f"{QUICK} --limit 200",
    "python examples/lab_3.py": f"{QUICK} --formats integer,binary",
    "python examples/lab_4.py": QUICK,
    "chop sweep quantize": f"{DIGITS} --widths 4,8 --qat-epochs 1 --out {{out}}",
    "chop compress --qat all": (
        f"{DIGITS} --qat-epochs 1 --bench-seconds 0 --keep-best --out {{out}}"
    ),
    "chop sweep quantize --widths 4:32:4 --frac 2,4,8": (
        f"{DIGITS} --widths 4,8 --frac 2,4 --qat-epochs 0 --out {{out}}"
    ),
    "chop sweep quantize --integer-bits 1:6 --fraction-bits 1:12": (
        f"{DIGITS} --integer-bits 2:3 --fraction-bits 5 --qat-epochs 0 --out {{out}}"
    ),
    "chop sweep prune": f"{DIGITS} --sparsity 0.5,0.9 --finetune-epochs 1 --out {{out}}",
    "chop sweep prune --from runs/sweep-quantize --activation l1-norm,random": (
        f"{DIGITS} --from {{out}}/../sweep-quantize --sparsity 0.5 --finetune-epochs 0 "
        "--out {out}"
    ),
    "chop search nas --trials 20": "--limit 120 --trials 2 --epochs 1 --out {out}",
    "chop search nas --samplers grid,random,tpe,sensitivity --seeds 3 --trials 25": (
        "--limit 120 --trials 2 --seeds 1 --epochs 1 --out {out}"
    ),
    "chop search nas --sampler tpe --compression compress-train": (
        "--limit 120 --trials 2 --epochs 1 --out {out}"
    ),
    "chop search precision --trials 40": f"{DIGITS} --trials 4 --out {{out}}",
    (
        "chop search precision --goal accuracy --per layer --widths 8,16,32 "
        "--ranges frac_width=2,4,8 --no-warm-start --sampler tpe --trials 40"
    ): f"{DIGITS} --trials 3 --out {{out}}",
    "chop search precision --formats all --per-format --goal accuracy --epochs 1 --trials 20": (
        f"{DIGITS} --trials 1 --out {{out}}"
    ),
    "chop bench compile": QUICK,
    "chop bench attention": QUICK,
    "chop bench linear": QUICK,
    "chop bench softmax": QUICK,
    "chop bench dequantize": QUICK,
    "chop emit --model mlp": "--no-synthesis --samples 10 --out {out}",
}
"""Command of the page -> what is added to it for a small run; `{out}` is its folder."""

Execute = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Item:
    """A row of the page.

    Attributes:
        what: the item of the course.
        command: the command that makes it.
        makes: files in the folder of `--out`.
    """

    what: str
    command: str
    makes: tuple[str, ...]

    def small(self, out: Path) -> list[str]:
        """The command of the small run, as words.

        Args:
            out: its folder.
        """
        words = shlex.split(self.command)
        small = shlex.split(SMALL[self.command].replace("{out}", str(out)))
        for option in (word for word in small if word.startswith("--") and word in words):
            start = words.index(option)
            del words[start : start + 2]
        return [*words, *small]


def items(text: str) -> Iterator[Item]:
    """The rows of a page, in order."""
    for line in text.splitlines():
        match = ROW.match(line)
        if match:
            makes = tuple(re.findall(r"`([^`]+)`", match["makes"]))
            yield Item(match["what"], match["command"], makes)


def get_folder(command: str) -> str:
    """Name of a command's folder: its words without those that all have."""
    words = re.sub(r"examples/|\.py|^python |^chop ", "", command)
    return re.sub(r"[^\w]+", "-", words)


def run(
    text: str, out: Path, execute: Execute, chosen: Collection[str] | None = None
) -> dict[str, Path]:
    """Runs each command once and looks for what its rows promise.

    Args:
        text: of the page.
        out: folder of all runs.
        execute: runs the words of a command.
        chosen: commands to run; None: all.
    Returns: the folder of each command.

    Raises:
        FileNotFoundError: a command has not made a file of its row.
    """
    folders: dict[str, Path] = {}
    for item in items(text):
        if chosen is not None and item.command not in chosen:
            continue
        folder = out / get_folder(item.command)
        if item.command not in folders:
            folder.mkdir(parents=True, exist_ok=True)
            execute(item.small(folder))
            folders[item.command] = folder
        for name in item.makes:
            if not any(folder.glob(name)):
                raise FileNotFoundError(f"{item.command}: made no {name} in {folder}")
    return folders


def with_figures(text: str, folders: dict[str, Path], out: Path) -> Iterator[str]:
    """The lines of the page, with figures below the tables that name them; its links still lead."""
    waiting: list[str] = []
    for line in [*text.splitlines(), ""]:
        match = ROW.match(line)
        if waiting and not line.startswith("|"):
            yield from ("", *waiting)
            waiting = []
        yield LINK.sub(f"]({DOCS}/", line)
        if match and match["command"] in folders:
            folder = folders[match["command"]]
            for name in re.findall(r"`([^`]+)`", match["makes"]):
                for path in sorted(folder.glob(name)):
                    if path.suffix in PICTURES:
                        waiting += [f"![{match['what']}]({path.relative_to(out)})", ""]


def _execute(words: Sequence[str]) -> None:
    program = ["-m", "chop.cli"] if words[0] == "chop" else []
    sys.stdout.write(f"{shlex.join(words)}\n")
    sys.stdout.flush()
    subprocess.run([sys.executable, *program, *words[1:]], cwd=DOCS.parent, check=True)


def main() -> None:
    """Runs the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="text that a command has to have")
    parser.add_argument("--out", type=Path, default=Path("runs/course"))
    given = parser.parse_args()
    out = given.out.resolve()
    chosen = [item.command for item in items(PAGE.read_text()) if given.only in item.command]
    folders = run(PAGE.read_text(), out, _execute, chosen)
    lines = with_figures(PAGE.read_text(), folders, out)
    (out / "course.md").write_text("\n".join(lines) + "\n")
    sys.stdout.write(f"{len(folders)} commands ran: {out / PAGE.name}\n")


if __name__ == "__main__":
    main()
