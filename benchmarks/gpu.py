"""Everything that a GPU is needed for, within minutes: tests, ceilings, kernels, models, commands.

    python benchmarks/gpu.py                         # all steps, in order of worth, nine minutes
    python benchmarks/gpu.py --only decode softmax
    python benchmarks/gpu.py --report runs/gpu       # tables of an earlier run, on any machine
    python benchmarks/gpu.py --dry-run               # each step at its smallest size, without a GPU

`OUT/gpu.json` holds what was found, and is written after each step; `OUT/report.md` the tables. A
step that fails is recorded with its traceback and the rest goes on; so is one that hangs or takes
the process with it: steps run in a process that is started again after such an end.

Nothing is fetched. The package need not be installed: `PYTHONPATH=src python benchmarks/gpu.py`.
What of its dependencies is missing is listed by the step `environment`, and steps that need it say
so. To bring wheels to a machine without a network, elsewhere `pip download --dest wheels NAME ...`
for its Python and platform, then there `pip install --no-index --find-links wheels NAME ...`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_place import Place, Tables

from chop.base.files import write_json, write_text
from chop.base.tables import markdown_table
from chop.errors import ChopError

DONE, CUT, FAILED, ENDED = "done", "cut short", "failed", "the process ended"
ENDS = (DONE, CUT, FAILED)
FILE, REPORT = "gpu.json", "report.md"
STEPS = {
    "environment": "gpu_place:environment",
    "tests": "gpu_place:tests",
    "ceilings": "gpu_steps:ceilings",
    "fake-quantize": "gpu_steps:fake_quantizers",
    "decode": "gpu_steps:decoding",
    "products": "gpu_steps:products",
    "softmax": "gpu_steps:softmax",
    "models": "gpu_models:models",
    "training": "gpu_models:training",
    "attention": "gpu_steps:attention",
    "linear": "gpu_steps:linear",
    "commands": "gpu_models:commands",
    "compile": "gpu_models:compiling",
    "generate": "gpu_models:generating",
}
"""In order of worth; a step whose imports fail is one that fails."""
POLL_SECONDS = 0.2
SHARE, LEAST_SECONDS = 0.6, 30.0
"""Of the time that is left, at most so much for one step, but at least so many seconds."""


def run_steps(names: Sequence[str], place: Place, out: Path) -> None:
    """Runs steps in this process, each recorded before the next begins.

    After an error of the device nothing can be computed in this process: it ends.
    """
    for name in names:
        if time.monotonic() > place.stop:
            return
        begin, place.is_cut = time.monotonic(), False
        found = {"tables": {}, "status": FAILED}
        record(out, {name: {**found, "status": ENDED}})
        try:
            for title, rows in _step(name)(place):
                found["tables"][title] = [*rows]
                record(out, {name: {**found, "status": ENDED}})
            found["status"] = CUT if place.is_cut else DONE
        except (Exception, SystemExit) as error:
            found["why"] = f"{type(error).__name__}: {error}"
            found["traceback"] = "" if isinstance(error, ChopError) else traceback.format_exc()
        found["seconds"] = round(time.monotonic() - begin, 1)
        record(out, {name: found})
        if found["status"] == FAILED and place.is_lost():
            raise SystemExit(f"{name}: the device is lost to this process")


def _step(name: str) -> Callable[[Place], Tables]:
    module, function = STEPS[name].split(":")
    found: Callable[[Place], Tables] = getattr(importlib.import_module(module), function)
    return found


def supervise(names: Sequence[str], minutes: float, dry: bool, out: Path) -> None:
    """Runs steps in processes of their own, one after the other as long as it lives."""
    stop = time.monotonic() + 60 * minutes
    waiting = list(names)
    while waiting and time.monotonic() < stop:
        left = _watched(waiting, stop, dry, out)
        begun = read(out)["steps"].get(left[0]) if left else None
        if begun or left == waiting:
            state = {"tables": {}, "why": ENDED, **(begun or {})}
            record(out, {left[0]: {**state, "status": FAILED}})
            left = left[1:]
        waiting = left
    record(out, {name: {"status": "no time was left", "tables": {}} for name in waiting})


def _watched(names: list[str], stop: float, dry: bool, out: Path) -> list[str]:
    """Those that are left when the process that runs them has ended, or was ended."""
    command = [sys.executable, __file__, "--run", *names, "--out", str(out)]
    command += ["--minutes", f"{(stop - time.monotonic()) / 60:.3f}"]
    env = {**os.environ, **({"TRITON_INTERPRET": "1"} if dry else {})}
    child = subprocess.Popen(command + ["--dry-run"] * dry, env=env, start_new_session=True)
    current, since = None, time.monotonic()
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        left = _left(names, out)
        if (left[0] if left else None) != current:
            current, since = (left[0] if left else None), time.monotonic()
            limit = max(SHARE * (stop - since), LEAST_SECONDS)
        is_late = time.monotonic() > stop + LEAST_SECONDS
        if is_late or (current and time.monotonic() - since > limit):
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            why = f"it was stopped after {time.monotonic() - since:.0f} s"
            state = {"tables": {}, "status": ENDED, **read(out)["steps"].get(current, {})}
            record(out, {current: {**state, "why": why}} if current else {})
    child.wait()
    return _left(names, out)


def _left(names: Sequence[str], out: Path) -> list[str]:
    steps = read(out)["steps"]
    return [x for x in names if steps.get(x, {}).get("status") not in ENDS]


def read(out: Path) -> dict[str, Any]:
    """What a run has found so far."""
    file = out / FILE
    return json.loads(file.read_text()) if file.exists() else {"steps": {}}


def record(out: Path, steps: Mapping[str, Any]) -> None:
    """Adds what steps found, and writes the tables again."""
    found = read(out)
    found["steps"].update(steps)
    write_json(out / FILE, found)
    write_text(out / REPORT, report(found["steps"]))


def report(steps: Mapping[str, Any]) -> str:
    """The tables of a run in Markdown, and what failed."""
    parts = []
    for name, step in steps.items():
        taken = f", {step['seconds']} s" if "seconds" in step else ""
        parts.append(f"## {name}: {step['status']}{taken}")
        parts += [f"{title}:\n\n{markdown_table(rows)}" for title, rows in step["tables"].items()]
        parts += [f"Why: {step['why']}"] if "why" in step else []
        parts += [f"```\n{step['traceback']}```"] if step.get("traceback") else []
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="no step or case begins later")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of results")
    parser.add_argument("--only", nargs="+", choices=STEPS, help="these steps alone")
    parser.add_argument("--report", type=Path, help="print the tables of that folder, run nothing")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, at the smallest sizes")
    parser.add_argument("--run", nargs="+", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        print(report(read(options.report)["steps"]))
        return
    if not options.dry_run and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --dry-run runs each step at its smallest size without one")
    if options.run:
        stop = time.monotonic() + 60 * options.minutes
        device = torch.device("cpu" if options.dry_run else "cuda")
        run_steps(options.run, Place(device, stop, options.out), options.out)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / FILE).unlink(missing_ok=True)
    supervise(options.only or [*STEPS], options.minutes, options.dry_run, options.out)
    steps = read(options.out)["steps"]
    print(report(steps))
    failed = [name for name, step in steps.items() if step["status"] != DONE]
    if failed:
        raise SystemExit(f"not done: {', '.join(failed)}; see {options.out / REPORT}")


if __name__ == "__main__":
    main()
