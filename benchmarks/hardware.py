"""Time from a trained built-in model to a verified circuit, on this machine.

Each model is emitted by `chop emit` with an empty cache of simulations: quantized, lowered,
written, linted, compiled, simulated on all 360 test digits under four profiles of stalls, compared;
and once more with synthesis.

python benchmarks/hardware.py [--models mlp cnn vit] [--out runs/hardware]

Writes `OUT.md`, the table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chop.base.files import write_text
from chop.base.hub import cache_folder
from chop.base.tables import markdown_table
from chop.train import load_trained


def main() -> None:
    """Emits every model twice and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn", "vit"])
    parser.add_argument("--out", type=Path, default=Path("runs/hardware"))
    given = parser.parse_args()
    rows = []
    for model in given.models:
        load_trained(model)  # trains it, where no earlier command has
        for name in ("verified", "synthesized"):
            rows.append(measure(model, name == "synthesized"))
            print(rows[-1], flush=True)
    write_text(given.out.with_suffix(".md"), markdown_table(rows) + "\n")


def measure(model: str, synthesis: bool) -> dict[str, Any]:
    """One `chop emit` in a process of its own, nothing of the design in the cache."""
    for library in cache_folder().glob("simulation-*.so"):
        library.unlink()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, model)
        flag = "--synthesis" if synthesis else "--no-synthesis"
        command = [sys.executable, "-m", "chop.cli", "-q", "emit", "--model", model]
        before, start = _cpu_seconds(), time.perf_counter()
        subprocess.run([*command, flag, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        wall, cpu = time.perf_counter() - start, _cpu_seconds() - before
        result = json.loads((out / "result.json").read_text())
    first, found = result["verification"][0], result["pytorch"]
    (whole,) = [row for row in result["resources"] if row["module"] == "all"] or [{}]
    return {
        "model": model,
        "to": "synthesized" if synthesis else "verified",
        "seconds": f"{wall:.0f}",
        "cpu seconds": f"{cpu:.0f}",
        "cores": len(os.sched_getaffinity(0)),
        "interval": f"{first['interval']:.1f}",
        "planned": result["interval"],
        "cycles simulated": f"{sum(row['cycles'] for row in result['verification']):,}",
        "multipliers": sum(row["multipliers"] for row in result["components"]),
        "different from PyTorch": f"{found['different']} of {found['outputs']}",
        **{key: whole.get(key, "") for key in ("lut", "ff", "dsp")},
    }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
