"""Other processors on this machine: runs what compares numbers as they would compute it.

python -m tests.processors [NAME ...] [-- ARGUMENTS OF PYTEST]

Libraries choose their loops by what the processor has, and take less where a variable says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from chop.kernels.cpu import build

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "sse": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        **({"CHOP_INSTRUCTIONS": "x86-64-v3"} if "x86-64-v3" in build.known_sets() else {}),
    },
    "compatible": {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "baseline": {"CHOP_INSTRUCTIONS": "baseline"},
}
"""Variables by the name of a processor: one without AVX, one without AVX-512, one that adds up in
the same order as every other and has no AMX, and one on which our own loops are not vectorized."""
SELECTION = (
    *("fixtures", "formats", "integer", "kernels", "problems/mixed_precision", "nn", "passes"),
    *("quantization", "statistics", "studies", "train"),
    *("cli/test_bench.py", "cli/test_bench_kernels.py", "test_gpu_benchmark.py"),
    "test_processors.py",
)
"""What compares numbers, in tests/."""
SHORT = ("fixtures/test_checkpoints.py", "nn/test_quantized.py", "test_processors.py")
"""The part of it that every run of the tests repeats in the first setting."""


def run(name: str, arguments: Sequence[str]) -> int:
    """Runs pytest in a process that is told to have less; returns its exit status."""
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **SETTINGS[name]}).returncode


def paths(selection: Sequence[str]) -> list[str]:
    """Of a selection, from the root."""
    return [f"tests/{name}" for name in selection]


def main() -> None:
    """Exits with 1 if any setting fails, after all of them."""
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    names, arguments = given[:end] or [*SETTINGS], given[end + 1 :]
    failed = []
    for name in names:
        variables = " ".join(f"{key}={value}" for key, value in SETTINGS[name].items())
        print(f"{name}: {variables}", flush=True)  # noqa: T201
        if run(name, [*paths(SELECTION), *arguments]):
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
