"""Other Pythons on this machine: those that chop is tested with, and environments of them.

`make test PYTHON=python3.13 VENV=.venv-3.13` makes an environment that is found here;
CHOP_PYTHONS names the interpreters of others, with ":" between them.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLASSIFIER = "Programming Language :: Python :: 3."
TESTED = [
    f"3.{text.removeprefix(CLASSIFIER)}"
    for text in PROJECT["classifiers"]
    if text.startswith(CLASSIFIER)
]
"""The versions that pyproject.toml names."""
SHORT = (
    *("captured", "base/files", "runs", "statistics", "search/test_connections.py"),
    *("search/test_space.py", "fixtures/test_checkpoints.py", "nn/test_quantized.py"),
    *("studies/test_compile.py", "actions/test_doctor.py", "cli/test_cli.py"),
    "base/test_installed.py",
)
"""What differs between Pythons, in tests/: their standard library, numpy, compiler and messages."""
NEEDED = ("torch", "transformers", "pytest", "hypothesis")


def interpreter(version: str, *packages: str) -> str | None:
    """The first interpreter of a version that has the packages, or None.

    Args:
        version: such as "3.12".
        packages: as they are imported.
    """
    return next((path for path in _candidates(version) if _has(path, version, packages)), None)


def _candidates(version: str) -> Iterator[str]:
    yield from filter(None, os.environ.get("CHOP_PYTHONS", "").split(os.pathsep))
    yield from map(str, sorted(ROOT.glob(f".venv*/bin/python{version}")))
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))


@functools.cache
def _has(path: str, version: str, packages: tuple[str, ...]) -> bool:
    code = (
        "import sys, importlib.util as u\n"
        f"print('%d.%d' % sys.version_info[:2], all(map(u.find_spec, {packages!r})))"
    )
    try:
        run = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=60)
    except OSError:
        return False
    return run.stdout.split() == [version, "True"]
