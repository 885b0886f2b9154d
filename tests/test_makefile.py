"""What each of the two commands installs, read from what `make` would run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def planned(*arguments):
    """The commands that `make` would run, none of which it runs."""
    run = subprocess.run(
        ["make", "--dry-run", "-C", str(ROOT), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MAKEFLAGS": ""},
    )
    return run.stdout


def test_the_demo_installs_the_product_and_no_test_tools(tmp_path):
    told = planned("demo", f"VENV={tmp_path}/venv")
    assert "pip install" in told and "-e ." in told and "chop demo" in told
    assert "[dev]" not in told


def test_the_tests_install_their_tools_on_top_of_the_product(tmp_path):
    told = planned("test", f"VENV={tmp_path}/venv")
    assert told.index(" -e .\n") < told.index('-e ".[dev]"') < told.index("/pytest -n")


def test_the_tools_alone_are_missing_after_a_demo(tmp_path):
    (tmp_path / ".installed").touch()
    told = planned("test", f"VENV={tmp_path}")
    assert '-e ".[dev]"' in told and "-m venv" not in told
    (tmp_path / ".test-tools").touch()
    assert "pip install" not in planned("test", f"VENV={tmp_path}")
    assert "pip install" not in planned("demo", f"VENV={tmp_path}")


def test_the_long_tests_have_their_tools_too(tmp_path):
    assert '-e ".[dev]"' in planned("test-long", f"VENV={tmp_path}/venv")


def test_other_processors_run_in_parallel_and_the_gate_tells_its_slowest_tests(tmp_path):
    told = planned("test-processors", f"VENV={tmp_path}/venv")
    assert '-e ".[dev]"' in told and "python -m tests.processors -- -n 2" in told
    assert "pytest -n 2 --dist worksteal --durations=40" in planned("test")


def test_another_python_can_be_named(tmp_path):
    assert "python3.12 -m venv" in planned("demo", "PYTHON=python3.12", f"VENV={tmp_path}/venv")


def test_the_tests_install_simulators_and_synthesis_first():
    told = planned("test")
    assert told.index("verilator iverilog yosys") < told.index("/pytest -n")
    assert "verilator" not in planned("demo")


@pytest.mark.parametrize(("tool", "said"), [("sh", ""), ("no-such-tool", "not installed: apt-get")])
def test_simulators_that_cannot_be_installed_are_told_and_no_failure(tmp_path, tool, said):
    for program in ("sh", "id"):  # and no apt-get
        (tmp_path / program).symlink_to(shutil.which(program))
    given = (f"HARDWARE={tool}", "BROWSER=sh")
    run = subprocess.run(
        [shutil.which("make"), "-s", "-C", str(ROOT), "hardware-tools", *given],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(said) and bool(run.stdout) == bool(said)
