"""Every tested Python compiles the sources, checks types, runs the demo and a part of the tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pythons
from tests.pythons import NEEDED, PROJECT, ROOT, SHORT, TESTED, interpreter

COMPILE = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("error")
for path in Path(sys.argv[1]).rglob("*.py"):
    compile(path.read_text(), str(path), "exec")
"""


def test_the_oldest_tested_python_is_the_oldest_allowed():
    assert PROJECT["requires-python"] == f">={TESTED[0]}"
    assert sorted(TESTED, key=lambda text: int(text.partition(".")[2])) == TESTED


def test_the_selection_is_there():
    assert [name for name in SHORT if not (ROOT / "tests" / name).exists()] == []


@pytest.mark.parametrize("version", TESTED)
def test_constraints_name_one_numpy_and_scipy_for_each_python(version):
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    asked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found = [
        one.name
        for one in asked
        if not one.marker or one.marker.evaluate({"python_version": version})
    ]
    assert sorted(found) == ["numpy", "scipy", "torch"]
    assert all(re.fullmatch(r"==[\d.]+", str(one.specifier)) for one in asked)


@pytest.mark.long
@pytest.mark.parametrize("version", TESTED)
def test_the_sources_compile_without_a_warning(version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"needs python{version}")
    run = subprocess.run(
        [python, "-c", COMPILE, str(ROOT / "src" / "chop")], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def run_under(version, *arguments, needed=NEEDED):
    """Runs modules of Python under another version; skips where its environment is missing."""
    if version == "{}.{}".format(*sys.version_info[:2]):
        pytest.skip("this run of the tests is of this Python")
    python = interpreter(version, *needed)
    if python is None:
        pytest.skip(f"needs make test PYTHON=python{version} VENV=.venv-{version}")
    run = subprocess.run(
        [python, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


@pytest.mark.long
@pytest.mark.parametrize("version", TESTED)
def test_a_short_selection_passes(version):
    run_under(version, "pytest", "-p", "no:xdist", *(f"tests/{name}" for name in SHORT))


@pytest.mark.long
@pytest.mark.parametrize("version", TESTED)
def test_the_types_fit_the_packages_of_each_python(version):
    run_under(version, "mypy", needed=(*NEEDED, "mypy"))


@pytest.mark.long
@pytest.mark.parametrize("version", TESTED)
def test_the_demo_runs(version, tmp_path):
    run_under(version, "chop", "demo", "--quiet", "--out", str(tmp_path / "demo"))
    assert (tmp_path / "demo" / "model.onnx").is_file()


def test_an_interpreter_is_one_of_its_version_with_the_packages(tmp_path, monkeypatch):
    here = "{}.{}".format(*sys.version_info[:2])
    broken = tmp_path / "python"  # as pyenv's stand-ins for versions that are not chosen
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CHOP_PYTHONS", f"{tmp_path}/none:{broken}:{sys.executable}")
    monkeypatch.setattr(pythons, "ROOT", Path(tmp_path))
    assert interpreter(here) == interpreter(here, *NEEDED) == sys.executable
    assert interpreter("3.0") is None and interpreter(here, "no_such_package") is None
