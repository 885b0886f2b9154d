"""What compares numbers holds on another processor too; `make test-processors` runs all of it."""

import os

import pytest
import torch

from chop.kernels.cpu import build
from tests import processors

GIVEN = {name for variables in processors.SETTINGS.values() for name in variables} & {*os.environ}


def test_the_selection_is_there():
    every = [*processors.SELECTION, *processors.SHORT]
    assert [name for name in every if not (processors.ROOT / "tests" / name).exists()] == []
    assert all(name.startswith(processors.SELECTION) for name in processors.SHORT)


@pytest.mark.skipif(not GIVEN, reason="this is the processor as it is")
def test_libraries_take_what_they_are_told():
    capability = os.environ.get("ATEN_CPU_CAPABILITY", "")
    assert torch.backends.cpu.get_cpu_capability().lower().startswith(capability)
    if build.SWITCH in GIVEN:
        level = os.environ[build.SWITCH]
        expected = {build.BASELINE: "-DCHOP_ONE_INSTRUCTION_SET"}.get(
            level, f"-DCHOP_LEVEL={level[-1]}"
        )
        assert build.target()[-1] == expected


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(bool(GIVEN), reason="this is another processor already")
def test_the_short_selection_passes_without_vector_instructions():
    assert processors.run("sse", [*processors.paths(processors.SHORT), "-p", "no:xdist"]) == 0


def test_every_setting_runs_and_failures_are_named(monkeypatch):
    ran = []

    def fails(name, arguments):
        ran.append((name, arguments))
        return name in ("sse", "baseline")

    monkeypatch.setattr(processors, "run", fails)
    monkeypatch.setattr("sys.argv", ["processors", "--", "-x"])
    with pytest.raises(SystemExit, match="failed: sse, baseline"):
        processors.main()
    assert [name for name, _ in ran] == ["sse", "avx2", "compatible", "baseline"]
    assert all(given == [*processors.paths(processors.SELECTION), "-x"] for _, given in ran)
    monkeypatch.setattr("sys.argv", ["processors", "avx2"])
    processors.main()
    assert ran[-1] == ("avx2", processors.paths(processors.SELECTION))
