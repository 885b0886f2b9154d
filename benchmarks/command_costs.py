"""Whether a change made imports, help, capture, quantizing or trials slower: two trees in turns.

Every case runs in processes of their own, in the order before, after, after, before; the ratio of
their processor times is paired within each round, with its 95 % interval (`chop.bench`). Both trees
are compiled to bytecode first.

python benchmarks/command_costs.py --before OLD/src --after NEW/src [--rounds 8] [--only TEXT ...]
    [--out runs/command-costs]

Writes `OUT.md`, the table.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
from pathlib import Path

from chop.base.files import write_text
from chop.base.tables import markdown_table
from chop.bench import paired_ratio
from chop.bench.record import format_ratio, format_seconds

CLOCK = "import time\nbegin = time.process_time()\n{}\nprint(time.process_time() - begin)"
MODEL = """
from transformers import BertConfig, BertModel
from chop import MaseGraph, passes
model = BertModel(BertConfig(num_hidden_layers=6, hidden_size=128, num_attention_heads=4))
"""
CAPTURE = "mg = MaseGraph(model, hf_input_names=['input_ids', 'attention_mask'])\n"
SETTINGS = "{'linear': {'config': {'name': 'integer', 'width': 8, 'frac_width': 4}}}"
SPACE = """
import tempfile
from chop.search import Choice, Goal, Search, SearchSpace
space = SearchSpace(tuple(Choice(f"c{i}", {str(k): k for k in range(4)}) for i in range(20)))
def objective(config, report):
    return {"loss": float(sum(map(int, config.values())))}
search = Search(space, objective, (Goal("loss", "minimize"),), out=tempfile.mkdtemp(),
                sampler="random")
search.run(until=5, progress=False)
"""
CASES = {
    "import chop": ("import torch", "import chop"),
    "import the graph and all passes": ("import torch", "from chop import MaseGraph, passes"),
    "chop --help": (
        "import sys; sys.argv = ['chop', '--help']",
        "from chop.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass",
    ),
    "capture, BERT of 6 layers": (MODEL + CAPTURE, CAPTURE * 2),
    "metadata and quantize, the same": (
        MODEL + CAPTURE,
        "mg, _ = passes.add_common_metadata_analysis_pass(mg)\n"
        f"for _ in range(5): passes.quantize_transform_pass(mg, {SETTINGS})",
    ),
    "200 trials in SQLite, 20 choices": (SPACE, "search.run(until=205, progress=False)"),
}
"""Name -> what is run before the clock, and by the clock."""


def seconds(src: Path, prepare: str, timed: str) -> float:
    """Processor seconds of one process.

    Args:
        src: the source tree.
        prepare: Python that runs before the clock.
        timed: Python that runs by the clock.
    """
    code = prepare + "\n" + CLOCK.format(timed)
    settings = {"PYTHONPATH": str(src), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **settings},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measures every case and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--out", type=Path, default=Path("runs/command-costs"))
    given = parser.parse_args()
    for tree in (given.before, given.after):
        if not (tree / "chop").is_dir():
            parser.error(f"'{tree}' has no folder chop: expected the src folder of a tree.")
    given = parser.parse_args()
    for tree in (given.before, given.after):
        if not (tree / "chop").is_dir():
            parser.error(f"'{tree}' has no folder chop: expected the src folder of a tree.")
        compileall.compile_dir(tree, quiet=1)
    rows = []
    for name, case in CASES.items():
        if not any(text in name for text in given.only):
            continue
        before, after = [], []
        for _ in range(given.rounds):
            for src, found in ((given.before, before), (given.after, after)):
                found.append(seconds(src.resolve(), *case))
            for src, found in ((given.after, after), (given.before, before)):
                found.append(seconds(src.resolve(), *case))
        rows.append(
            {
                "case": name,
                "before": format_seconds(sorted(before)[len(before) // 2]),
                "after / before": format_ratio(paired_ratio(after, before)),
            }
        )
        print(rows[-1], flush=True)
    write_text(given.out.with_suffix(".md"), markdown_table(rows) + "\n")


if __name__ == "__main__":
    main()
