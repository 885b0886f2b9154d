"""Where and how long the steps of `gpu.py` run, and those that need nothing of the package.

What a machine lacks must not keep the others from running: this file imports torch alone.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
TESTS, TEST_SECONDS, MAX_WORKERS = ("tests/kernels", "tests/test_devices.py"), 150, 12
Rows = Sequence[Mapping[str, Any]]
Tables = Iterator[tuple[str, Rows]]


@dataclass
class Place:
    """Where steps run, and until when.

    Attributes:
        device: a GPU; the CPU in a dry run.
        stop: of the clock `time.monotonic`: no case begins after it.
        out: folder of the results.
        is_cut: whether a case did not begin for want of time.
    """

    device: torch.device
    stop: float
    out: Path
    is_cut: bool = False

    @property
    def is_dry(self) -> bool:
        """Whether sizes are the smallest, and times mean nothing."""
        return self.device.type == "cpu"

    @property
    def seconds(self) -> float:
        """Of measuring, for each variant."""
        return 0.02 if self.is_dry else 0.3

    @property
    def how(self) -> dict[str, Any]:
        """Settings of studies."""
        shared = {"seconds": self.seconds, "device": self.device.type, "quick": self.is_dry}
        return {**shared, "out": self.out}

    def in_time(self, cases: Sequence[Any], least: int = 1) -> Iterator[Any]:
        """Cases, as long as there is time; the first `least` in a dry run."""
        for case in cases[:least] if self.is_dry else cases:
            if time.monotonic() > self.stop:
                self.is_cut = True
                return
            yield case

    def is_lost(self) -> bool:
        """Whether the device computes no more for this process, as after an illegal access."""
        try:
            return bool(torch.zeros(1, device=self.device).item())
        except RuntimeError:
            return True


def environment(place: Place) -> Tables:
    """Device, driver, versions and dependencies."""
    found = {"torch": torch.__version__, "CUDA of torch": torch.version.cuda, "device": "cpu"}
    if not place.is_dry:
        properties = torch.cuda.get_device_properties(place.device)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        found["device"] = f"{properties.name}, {memory}, {properties.multi_processor_count} SMs"
    query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
    found["driver"] = _output(query)
    found["nvcc"] = _output("nvcc --version").splitlines()[-1]
    found["commit"] = _output(f"git -C {ROOT} rev-parse HEAD")
    yield "Environment", [{"what": name, "is": str(value)} for name, value in found.items()]
    yield "Dependencies", [*_missing()]


def _output(command: str) -> str:
    words = command.split()
    if shutil.which(words[0]) is None:
        return f"{words[0]} is not installed"
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "no answer"


def _missing() -> Iterator[dict[str, str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["triton"]
    for line in [*project["dependencies"], *(x.split(";")[0] for x in extra)]:
        name = re.split(r"[<>=!~;\[ ]", line)[0]
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        yield {"wanted": line, "found": version}


def tests(place: Place) -> Tables:
    """Every test that needs a GPU; what pytest says is in OUT/tests.log too."""
    # Names as they come: what a run that is cut short has found is there.
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-ra", "-v"]
    command += ["-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default"]
    if importlib.util.find_spec("xdist") is not None:
        workers = 0 if place.is_dry else min(MAX_WORKERS, os.cpu_count() or 1)
        command += ["-n", str(workers)]
    command += [*TESTS[1:], "--collect-only"] if place.is_dry else [*TESTS]
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    env["CHOP_SUBCASES"] = "apart"  # each compiles a kernel of its own
    log = place.out / "tests.log"
    ended: int | None = None
    with log.open("w") as told, contextlib.suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(
            command, cwd=ROOT, env=env, stdout=told, stderr=told, timeout=TEST_SECONDS
        ).returncode
    lines = log.read_text().splitlines() or ["no output"]
    rows = [{"test": line.replace("|", "/")} for line in lines if _is_told(line)]
    how = f"stopped after {TEST_SECONDS} s" if ended is None else lines[-1].strip("= ")
    yield f"Tests that need a GPU: {how}", rows
    if ended != 0:
        raise RuntimeError("\n".join([how, *lines[-40:]]))


def _is_told(line: str) -> bool:
    """Whether a line of pytest's names a test that did not pass."""
    return bool(re.match(r"(\[gw\d+\] \[ *\d+%\] )?(FAILED|ERROR|SKIPPED)", line))
