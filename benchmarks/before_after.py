"""Speed of two source trees relative to each other, to find what a change made slower.

Each tree has a process with one thread. Slices of some milliseconds of each case alternate (before,
after, after, before), so that a slow machine slows both. The result is the median ratio of
processor time with its 95 % interval (`chop.bench`). Every case is measured by two pairs of
processes, because the place of a process in memory can change times by some percent. Cases whose
interval then reaches above the limit are measured by up to two more pairs. Freed memory stays with
the processes as huge pages (Linux with glibc), so fresh pages are not timed. The same tree given
twice has a ratio of 1.00. All cases take ten minutes on two cores.

python benchmarks/before_after.py --before OLD/src --after NEW/src [--only TEXT ...] [--rounds 5]
    [--limit 1.03] [--out runs/before-after] [--list]

Writes `OUT.json` (every reading) and `OUT.md` (the table). The exit status is 1 if the whole
interval of a case is above the limit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.bench import Interval, paired_ratio
from chop.bench.environment import environment
from chop.bench.record import format_seconds

WORKER = Path(__file__).with_name("before_after_cases.py")
SLICE_SECONDS = 0.012
MOST_CALLS = 20_000
LONG_CASE_SECONDS = 8.0
"""Time for slow calls, which have fewer rounds, but at least `LEAST_ROUNDS` for an interval."""
LEAST_ROUNDS = 3
LEAST_PASSES, PASSES = 2, 4
FIXED = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
    # With huge pages that stay allocated, times depend less on the place of a tensor in memory.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432"
    ":glibc.malloc.trim_threshold=2147483647",
}


class Tree:
    """A process that measures one source tree.

    Args:
        source: a folder with the package `chop`.

    Attributes:
        contents: its cases, and the paths of its `chop` and of its compiled loops.
    """

    def __init__(self, source: Path) -> None:
        self.source = source.resolve()
        if not (self.source / "chop" / "__init__.py").is_file():
            raise SystemExit(f"'{source}' has no package chop in it: expected a folder src.")
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(self.source),
        )
        self.contents = self.ask("list")

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Returns the answer to a request."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of '{self.source}' has ended; its error is above.")
        return json.loads(line)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def _environment(source: Path) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join([str(source), str(WORKER.parent)])
    return {**os.environ, **threads, "PYTHONPATH": path, **FIXED}


@dataclass
class Measured:
    """Times of a case.

    Attributes:
        case: name.
        before, after: seconds of one call, in the order of the pairs.
        error: reason for missing times.
    """

    case: str
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def ratio(self) -> Interval:
        """Ratio of times, after / before: above 1 is slower."""
        return paired_ratio(self.after, self.before) if self.after else Interval(math.nan)

    @property
    def group(self) -> str:
        """Part of the name before the colon."""
        return self.case.partition(":")[0]


def measure(measured: Measured, trees: tuple[Tree, Tree], rounds: int) -> None:
    """Adds two pairs of times in each round."""
    prepared = [tree.ask("prepare", case=measured.case) for tree in trees]
    errors = [answer["error"] for answer in prepared if "error" in answer]
    if errors:
        measured.error = errors[0]
        return
    slowest = max(answer["processor"] for answer in prepared)
    calls = max(1, min(MOST_CALLS, round(SLICE_SECONDS / max(slowest, 1e-7))))
    most = math.ceil(LONG_CASE_SECONDS / (4 * calls * max(slowest, 1e-7)))
    for turn in range(max(LEAST_ROUNDS, min(rounds, most))):
        order = (0, 1, 1, 0) if turn % 2 == 0 else (1, 0, 0, 1)
        for place in order:
            seconds = trees[place].ask("time", calls=calls)["processor"] / calls
            (measured.before, measured.after)[place].append(seconds)


def verdict(ratio: Interval, limit: float) -> str:
    """Compares an interval with the limit."""
    if math.isnan(ratio.median):
        return "not measured"
    if ratio.low > limit:
        return "SLOWER"
    return "within" if ratio.high <= limit else "unsure"


@contextmanager
def both(before: Path, after: Path) -> Iterator[tuple[Tree, Tree]]:
    """Starts new processes of both trees."""
    with Tree(before) as first, Tree(after) as second:
        for tree in (first, second):
            if not Path(tree.contents["chop"]).is_relative_to(tree.source):
                raise SystemExit(
                    f"expected chop of '{tree.source}', got '{tree.contents['chop']}'."
                )
        yield first, second


def compare(
    found: Sequence[Measured], before: Path, after: Path, rounds: int, limit: float
) -> None:
    """Measures every case, and those that are not within the limit again."""
    for number in range(1, PASSES + 1):
        is_sure = [number > LEAST_PASSES and verdict(m.ratio, limit) == "within" for m in found]
        left = [m for m, sure in zip(found, is_sure, strict=True) if not (sure or m.error)]
        if not left:
            return
        print(f"pass {number} of up to {PASSES}: {len(left)} cases", flush=True)
        with both(before, after) as trees:
            for measured in left:
                measure(measured, trees, rounds)
                print("  ".join(get_row(measured, limit).values()), flush=True)


def get_row(measured: Measured, limit: float) -> dict[str, str]:
    """Returns the row of a case."""
    ratio, has_any = measured.ratio, bool(measured.before)
    median = [
        torch.tensor(times, dtype=torch.float64).median().item() if has_any else None
        for times in (measured.before, measured.after)
    ]
    return {
        "case": measured.case,
        "before": format_seconds(median[0]) or "-",
        "after": format_seconds(median[1]) or "-",
        "after / before": f"{ratio.median:.3f}" if has_any else "-",
        "95 % interval": f"{ratio.low:.3f} to {ratio.high:.3f}" if has_any else "-",
        "pairs": str(len(measured.before)),
        f"limit {limit:g}": measured.error or verdict(ratio, limit),
    }


def summary(found: Sequence[Measured], limit: float) -> list[dict[str, str]]:
    """Returns the geometric mean of the medians and the slowest case of each group."""
    groups: dict[str, list[Measured]] = defaultdict(list)
    for measured in found:
        if measured.before:
            groups[measured.group].append(measured)
    rows = []
    for group, members in {**groups, "all": [m for m in found if m.before]}.items():
        medians = [m.ratio.median for m in members]
        verdicts = [verdict(m.ratio, limit) for m in members]
        worst = max(members, key=lambda m: m.ratio.median)
        mean = math.exp(sum(map(math.log, medians)) / len(medians))
        rows.append(
            {
                "group": group,
                "cases": str(len(members)),
                "geometric mean": f"{mean:.3f}",
                "worst": f"{worst.ratio.median:.3f} {worst.case}",
                **{v: str(verdicts.count(v)) for v in ("within", "unsure", "SLOWER")},
            }
        )
    return rows


def write(out: Path, found: Sequence[Measured], about: dict[str, Any], limit: float) -> None:
    """Writes the tables and every reading."""
    out.parent.mkdir(parents=True, exist_ok=True)
    cases = [{**asdict(m), "ratio": asdict(m.ratio)} for m in found]
    document = {**about, "limit": limit, "cases": cases}
    write_text(out.with_suffix(".json"), json.dumps(document, indent=1) + "\n")
    tables = (summary(found, limit), [get_row(measured, limit) for measured in found])
    write_text(out.with_suffix(".md"), "\n\n".join(map(markdown_table, tables)) + "\n")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder src of the old tree")
    parser.add_argument("--after", type=Path, required=True, help="folder src of the new tree")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        help="texts; only cases whose names contain one are measured",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of four slices for each pair of processes"
    )
    parser.add_argument("--limit", type=float, default=1.03, help="largest ratio that passes")
    parser.add_argument("--out", type=Path, default=Path("runs/before-after"))
    parser.add_argument("--list", action="store_true", help="only prints the names of the cases")
    options = parser.parse_args()
    with both(options.before, options.after) as trees:
        contents = [tree.contents for tree in trees]
    chosen = [n for n in contents[0].pop("cases") if any(o in n for o in options.only or [""])]
    if options.list:
        print("\n".join(chosen))
        return
    found = [Measured(name) for name in chosen]
    compare(found, options.before, options.after, options.rounds, options.limit)
    about = {"environment": environment(torch.device("cpu"), 1), "trees": contents}
    write(options.out, found, about, options.limit)
    print("\n" + markdown_table(summary(found, options.limit)))
    sys.exit(any(verdict(m.ratio, options.limit) == "SLOWER" for m in found))


if __name__ == "__main__":
    main()
