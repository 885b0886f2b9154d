"""Circuits with weights that are written at run time: `--weight-memory` and `--weights-from`."""

from dataclasses import replace

import pytest
import torch

from chop.actions.emit.check import check_again
from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.errors import CheckpointError, ConfigError
from tests.actions.emit.circuits import SETTINGS, Points, workload

TOOLS = pytest.mark.tools("verilator", "iverilog", "yosys")
AGAIN = {name: value for name, value in SETTINGS.items() if name != "fold"} | {"icarus_samples": 0}


@pytest.fixture
def retrained(tmp_path):
    """A file with other weights, two of which are beyond the circuit's formats."""
    torch.manual_seed(7)
    model = Points()
    with torch.no_grad():
        model.last.weight[0, :2] = 90.0
    torch.save(model.state_dict(), tmp_path / "new.pt")
    return tmp_path / "new.pt"


@TOOLS
def test_weights_need_a_circuit_that_loads_them(tmp_path):
    settings = EmitConfig(out=tmp_path / "out", weights_from=tmp_path / "new.pt")
    with pytest.raises(ConfigError, match="expected the folder of a circuit"):
        emit(settings)
    with pytest.raises(CheckpointError, match="manifest"):
        emit(replace(settings, start_from=tmp_path))


@pytest.mark.long
@TOOLS
def test_a_retrained_model_needs_only_other_words(tmp_path, retrained, capsys):
    out, again = tmp_path / "out", tmp_path / "again"
    emit(EmitConfig(out=out, weight_memory="loadable", wrap="axi-lite", **SETTINGS), workload())
    report = (out / "report.md").read_text()
    assert "## Weights at run time" in report and "| first_weight | 0 | 12 | 12 |" in report
    assert "| status | 0x4 |" in report and "| weights | 0x1000 to 0x1070 |" in report
    settings = EmitConfig(out=again, start_from=out, weights_from=retrained, **AGAIN)
    result = emit(settings, workload())
    assert "2 of 12 numbers of last.weight" in capsys.readouterr().out
    assert result["pytorch"]["different"] == 0
    for name in ("rtl", "design.json"):
        paths = [out / name] if name.endswith("json") else sorted((out / name).iterdir())
        assert paths
        for path in paths:
            assert path.read_bytes() == (again / path.relative_to(out)).read_bytes()
    words = [(folder / "weights" / "weights.bin").read_bytes() for folder in (out, again)]
    assert len(words[0]) == len(words[1]) and words[0] != words[1]
    lines = (again / "weights" / "weights.hex").read_text().split()
    assert b"".join(int(line, 16).to_bytes(4, "little") for line in lines) == words[1]
    assert check_again(EmitConfig(out=again, check_only=True))["verification"]
    with pytest.raises(ConfigError, match=r"fold: .* has 12, got 6"):
        emit(replace(settings, fold=6), workload())


@pytest.mark.long
@TOOLS
def test_scales_in_the_circuit_refuse_other_ones(tmp_path, retrained):
    out = tmp_path / "out"
    scaled = {**SETTINGS, "formats": "scale_integer:width=8", "weight_memory": "loadable"}
    emit(EmitConfig(out=out, **scaled), workload())
    settings = EmitConfig(out=tmp_path / "again", start_from=out, weights_from=retrained, **AGAIN)
    with pytest.raises(ConfigError, match=r"cannot take these weights: component '\w+'.* has"):
        emit(settings, workload())
    assert not (tmp_path / "again").exists()


@pytest.mark.long
@TOOLS
def test_fixed_weights_stay(tmp_path, retrained):
    out = tmp_path / "out"
    emit(EmitConfig(out=out, **SETTINGS), workload())
    assert not (out / "weights").exists() and not (out / "quantized.mz").exists()
    with pytest.raises(ConfigError, match="are fixed. Emit it with --weight-memory"):
        emit(EmitConfig(start_from=out, weights_from=retrained, **AGAIN), workload())
