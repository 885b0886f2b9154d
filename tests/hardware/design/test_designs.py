"""The built-in vision models as circuits: every output of every test digit, under every stall."""

import json

import pytest

from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig

pytestmark = pytest.mark.tools("verilator", "iverilog", "yosys")
DIGITS = 360
PROFILES = ("none", "uniform", "slow_reader", "bursts")
ICARUS_SAMPLES = {"mlp": 20, "cnn": 2, "vit": 2}


@pytest.mark.long
@pytest.mark.parametrize("model", ICARUS_SAMPLES)
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
    planned = result["timing"]["planned_latency_cycles"]
    assert abs(planned - none["latency"]) <= 0.05 * none["latency"]
    # The stalls are felt: the design waits for a reader of half its pace.
    assert slow["interval"] > 1.8 * none["interval"] and uniform["cycles"] > none["cycles"]
    assert result["accuracy"]["integer"] > 0.9
    found = result["pytorch"]
    assert found["outputs"] == 10 * DIGITS
    assert (found["different"] == 0) == (model != "vit")
    text = (out / "report.md").read_text()
    assert ("RTL = PyTorch, bit for bit" in text) == (model != "vit")
    assert ("differs most" in text) == (model == "vit")
    assert json.loads((out / "manifest.json").read_text())["state"] == "finished"
