"""The built-in vision models as circuits: every output of every test digit, under every stall."""

import json

import pytest

from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.hardware.check.profiles import PROFILES as STALLS
from chop.hardware.check.verify import Check

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys")
DIGITS = 360
PROFILES = ("none", "uniform", "slow_reader", "bursts")
ICARUS_SAMPLES = {"mlp": 20, "cnn": 2, "vit": 2}
FEW, MORE = 24, 120


@pytest.mark.parametrize(
    "model", ["cnn", *(pytest.param(name, marks=pytest.mark.long) for name in ("mlp", "vit"))]
)
@pytest.mark.long
def test_a_circuit_equals_the_integer_graph_on_every_digit(model, tmp_path):
    out, count = tmp_path / model, ICARUS_SAMPLES[model]
    result = emit(EmitConfig(model=model, out=out, icarus_samples=count, synthesis=False))
    rows = result["verification"]
    assert [(row["simulator"], row["profile"], row["equal"]) for row in rows] == [
        *(("verilator", profile, 10 * DIGITS) for profile in PROFILES),
        *(("icarus", profile, 10 * count) for profile in PROFILES[:2]),
    ]
    none, uniform, slow, _bursts = rows[:4]
    assert abs(none["interval"] - result["interval"]) <= 0.03 * result["interval"]
    # The stalls are felt: the design waits for a reader of half its pace.
    assert slow["interval"] > 1.8 * none["interval"] and uniform["cycles"] > none["cycles"]
    assert result["accuracy"]["integer"] > 0.9
    found = result["pytorch"]
    assert found["outputs"] == 10 * DIGITS
    assert (found["different"] == 0) == (model != "vit")
    text = (out / "report.md").read_text()
    assert ("RTL = PyTorch, bit for bit" in text) == (model != "vit")
    assert json.loads((out / "manifest.json").read_text())["state"] == "finished"


@pytest.mark.long  # its operators are compared one by one in their own files
def test_a_vision_transformer_equals_the_integer_graph(tmp_path, monkeypatch):
    """A third of the digits under stalls at random, some under each other profile.

    Icarus takes a quarter of a minute for its first sample; its operators run there one by one.
    """
    monkeypatch.setattr("chop.actions.emit.job.checks", _checks_in_short)
    out = tmp_path / "vit"
    result = emit(EmitConfig(model="vit", out=out, synthesis=False))
    rows = {(row["simulator"], row["profile"]): row for row in result["verification"]}
    equal = [(*ran, row["equal"]) for ran, row in rows.items()]
    assert equal == [
        ("verilator", name, 10 * (MORE if name == "uniform" else FEW)) for name in PROFILES
    ]
    none, uniform, slow = (rows["verilator", name]["interval"] for name in PROFILES[:3])
    assert abs(none - result["interval"]) <= 0.03 * result["interval"]
    assert slow > 1.8 * none and uniform > none
    assert result["accuracy"]["integer"] > 0.9
    found = result["pytorch"]
    assert found["outputs"] == 10 * DIGITS and found["different"] > 0
    assert "RTL = PyTorch, bit for bit" not in (out / "report.md").read_text()
    assert json.loads((out / "manifest.json").read_text())["state"] == "finished"


def _checks_in_short(samples, icarus_samples, seed):
    counts = {"uniform": MORE}
    return [Check("verilator", way, counts.get(way.name, FEW), seed) for way in STALLS]
