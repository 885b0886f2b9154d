"""`benchmarks/gpu.py` without a GPU: every step at its smallest size, and what failures leave."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.cli.test_adapter import COMMANDS, LEAVES

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    return gpu


@pytest.mark.slow
@pytest.mark.long  # each command has tests of its own
def test_a_dry_run_covers_every_step(tmp_path, gpu):
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--out", str(tmp_path)]
    done = subprocess.run([*command, "--dry-run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    steps = json.loads((tmp_path / "gpu.json").read_text())["steps"]
    assert list(steps) == list(gpu.STEPS)
    assert all(step["status"] == gpu.DONE and step["tables"] for step in steps.values())


def test_every_command_that_takes_a_device_is_called(gpu):
    from gpu_models import COMMANDS as CALLED

    called = {words.split(" --")[0] for words in CALLED.values()}
    others = {"demo", "emit", "prune"}  # compress on a built-in model; simulators; a forward
    takes_device = (
        name for name in LEAVES if any("--device" in p.opts for p in COMMANDS[name].params)
    )
    assert called | others == set(takes_device)


def fails(place):
    """A step of one table that then fails."""
    yield "a table", [{"value": 1}]
    raise ValueError("too small")


def works(place):
    """A step of two tables, of which the last of a title counts."""
    yield "a table", [{"value": 1}]
    yield "a table", [{"value": 1}, {"value": 2}]


def test_tests_that_did_not_pass_are_named_of_any_worker(gpu):
    from gpu_place import _is_told

    named = ["FAILED tests/a.py::b", "[gw1] [  2%] FAILED tests/a.py::b ", "[gw11] [100%] ERROR a"]
    others = ["[gw1] [ 10%] PASSED tests/a.py::b ", "E  FAILED", "tests/a.py::FAILED"]
    assert [*map(_is_told, named + others)] == 3 * [True] + 3 * [False]


def test_a_step_that_fails_is_recorded_and_the_rest_goes_on(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "_step", {"first": fails, "second": works}.get)
    place = gpu.Place(torch.device("cpu"), time.monotonic() + 60, tmp_path)
    gpu.run_steps(["first", "second"], place, tmp_path)
    first, second = gpu.read(tmp_path)["steps"].values()
    assert (first["status"], first["why"]) == ("failed", "ValueError: too small")
    assert "in fails" in first["traceback"] and first["tables"] == {"a table": [{"value": 1}]}
    assert second["status"] == "done" and len(second["tables"]["a table"]) == 2
    assert "ValueError: too small" in (tmp_path / "report.md").read_text()


def test_a_step_that_ends_the_process_is_recorded_and_the_rest_goes_on(gpu, monkeypatch, tmp_path):
    runs = []

    def ends(names, stop, dry, out):
        """A process that dies in its first step, and one that does all."""
        runs.append(list(names))
        status = gpu.ENDED if len(runs) == 1 else gpu.DONE
        gpu.record(out, {names[0]: {"status": status, "tables": {}}})
        return gpu._left(names, out)

    monkeypatch.setattr(gpu, "_watched", ends)
    gpu.supervise(["first", "second"], 1.0, True, tmp_path)
    steps = gpu.read(tmp_path)["steps"]
    assert runs == [["first", "second"], ["second"]]
    assert [step["status"] for step in steps.values()] == [gpu.FAILED, gpu.DONE]
    assert steps["first"]["why"] == gpu.ENDED


def test_a_process_that_hangs_is_stopped(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "LEAST_SECONDS", 0.5)
    script = tmp_path / "hangs.py"
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(gpu, "__file__", str(script))
    begin = time.monotonic()
    gpu.supervise(["first"], 0.02, True, tmp_path)
    assert time.monotonic() - begin < 20
    assert "was stopped after" in gpu.read(tmp_path)["steps"]["first"]["why"]


def test_without_a_gpu_the_way_out_is_named(gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        gpu.main()
    assert "no GPU; --dry-run runs each step" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_tables_are_printed_again_anywhere(gpu, monkeypatch, tmp_path, capsys):
    table = {"Rates": [{"copy": "3 TB/s"}]}
    gpu.record(tmp_path, {"ceilings": {"status": gpu.DONE, "seconds": 1.5, "tables": table}})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--report", str(tmp_path)])
    gpu.main()
    assert capsys.readouterr().out.strip() == (tmp_path / "report.md").read_text().strip()
    assert "| 3 TB/s |" in (tmp_path / "report.md").read_text()
