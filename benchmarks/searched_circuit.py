"""What Yosys counts of the circuit that a precision search found, beside one format everywhere.

The search is one that ended, of a device without multipliers. What it found and one format
everywhere, with the same fold, are made again as circuits of today and counted as
`hardware_estimates.py` does.

python benchmarks/searched_circuit.py runs/search/precision [--uniform 8.mse] [--out FOLDER]

Writes `FOLDER/table.md`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hardware_estimates import FAMILIES, count, get_row

from chop import runs
from chop.actions.search.precision_subject import PrecisionSubject
from chop.actions.search.settings import PrecisionConfig
from chop.base.files import write_text
from chop.base.files.documents import read_json
from chop.base.tables import markdown_table
from chop.config import parse
from chop.hardware.design.emit import emit
from chop.runs.journal import Journal

FAMILY = "xc7-nodsp"


def main() -> None:
    """Counts both circuits, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--uniform", default="8.mse")
    parser.add_argument("--out", type=Path, default=Path("runs/searched-circuit"))
    given = parser.parse_args()
    config = parse(PrecisionConfig, runs.read_manifest(given.study).settings)
    problem = PrecisionSubject(config).problem
    assert problem.circuit is not None and problem.circuit.settings.family == FAMILIES[FAMILY]
    found = read_json(given.study / "best.json")["choices"]
    journal, rows = Journal(given.out / "journal.jsonl"), []
    for name, chosen in (("found", found), (given.uniform, problem.uniform(given.uniform))):
        fold = problem.max_fold(chosen)
        design = emit(problem.circuit.integers(problem.formats(chosen)), fold)
        rows.append(get_row(name, fold, design, FAMILY, count(design, FAMILY, journal)))
        print(rows[-1], flush=True)
        write_text(given.out / "table.md", markdown_table(rows) + "\n")


if __name__ == "__main__":
    main()
