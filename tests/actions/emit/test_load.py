"""Circuits with weights that are written at run time: `--weight-memory` and `--weights-from`."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from chop import runs
from chop.actions.emit import job
from chop.actions.emit.check import check_again
from chop.actions.emit.job import emit
from chop.actions.emit.load import QUANTIZED, _differences, config_of_circuit, lower_again
from chop.actions.emit.lower import lower_workload
from chop.actions.emit.settings import EmitConfig
from chop.actions.starting_run import config_of_run
from chop.errors import CheckpointError, ConfigError
from chop.hardware.design.emit import emit as emit_design
from chop.workloads.workload import Workload
from tests.actions.emit.circuits import SETTINGS, Points, workload
from tests.integer.test_decoding import LENGTH, WORDS, Learned

TOOLS = pytest.mark.tools("verilator", "iverilog", "yosys")
CHANGED = [("fold", 12, 6), ("formats", "8.auto", "4.auto"), ("decode", False, True)]
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


@pytest.fixture
def circuit(monkeypatch):
    """Settings of a loadable circuit, as its manifest has them."""
    settings = {"weight_memory": "loadable", "formats": "6.auto", "decode": True, "fold": 0}
    manifest = SimpleNamespace(kind="emit", state="finished", settings=settings)
    monkeypatch.setattr("chop.actions.emit.load.runs.read_manifest", lambda folder: manifest)
    return settings


def test_weights_are_lowered_with_the_settings_of_the_circuit(circuit, tmp_path):
    config = EmitConfig(start_from=tmp_path, weights_from=tmp_path / "new.pt")
    taken = config_of_circuit(config)
    assert {name: getattr(taken, name) for name in circuit} == circuit
    with pytest.raises(ConfigError, match=r"formats: .* has 6.auto, got 4.auto; leave it out"):
        config_of_circuit(replace(config, formats="4.auto"))
    circuit["fold"] = 12
    with pytest.raises(ConfigError, match=r"device: .* has None, got ecp5-25; leave it out"):
        config_of_circuit(replace(config, device="ecp5-25"))


@TOOLS
def test_placing_other_weights_needs_no_folds_of_a_device(circuit, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "check_device", lambda name: None)
    monkeypatch.setattr(job, "config_of_run", lambda config, *others: config)
    monkeypatch.setattr(job, "run_job", lambda job, config, *others: {"config": config})
    given = EmitConfig(start_from=tmp_path, weights_from=tmp_path / "new.pt", place=True)
    assert emit(replace(given, out=tmp_path / "out"))["config"].device is None


def test_only_other_weights_start_from_a_circuit(tmp_path):
    with runs.start("emit", {"model": "mlp", "formats": "6.auto"}, tmp_path):
        pass
    config = EmitConfig(start_from=tmp_path, weights_from=tmp_path / "new.pt")
    assert config_of_run(config, None).model == "mlp"
    with pytest.raises(CheckpointError, match="from chop emit and has a graph of integers"):
        config_of_run(replace(config, weights_from=None), None)


def normed(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU())
    norm = model[1]
    for x in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        x.data = torch.rand(4) + 0.5
    return model.eval()


def lowered_again(model, weights, folder, formats=EmitConfig.formats):
    """The integer graph of a model's circuit with other weights, and its quantized graph."""
    x, labels = torch.randn(60, 6), torch.arange(60) % 3
    own = Workload.of(model, (x[:40], labels[:40]), (x[40:], labels[40:]), device="cpu")
    settings = EmitConfig(weight_memory="loadable", formats=formats, **SETTINGS)
    lowering = lower_workload(own, settings, 12)
    lowering.quantized.export(folder / QUANTIZED)
    lowering.integer.export(folder / "model")
    torch.save(weights, folder / "new.pt")
    again = replace(settings, start_from=folder, weights_from=folder / "new.pt")
    return lower_again(own, again, 12)


def test_batch_norms_of_a_retrained_model_are_folded(tmp_path):
    model, other = normed(0), normed(1)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    state = lowered_again(model, other.state_dict(), tmp_path).quantized.model.state_dict()
    linear, norm, _ = other
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    weight, bias = state.values()
    torch.testing.assert_close(weight.double(), linear.weight.double() * scale[:, None])
    torch.testing.assert_close(bias.double(), norm.bias.double() - norm.running_mean * scale)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_weights_that_are_not_finite_are_refused(tmp_path):
    weights = Points().state_dict()
    weights["last.bias"][1] = torch.nan
    with pytest.raises(CheckpointError, match="NaN or an infinite number in last.bias"):
        lowered_again(Points(), weights, tmp_path)


@TOOLS
def test_a_circuit_without_loadable_weights_is_refused(tmp_path):
    settings = {**SETTINGS, "formats": "mxint", "weight_memory": "loadable"}
    with pytest.raises(ConfigError, match="weight_memory: this circuit has no loadable weights"):
        emit(EmitConfig(out=tmp_path / "out", **settings), workload())


@pytest.mark.long
def test_what_stays_fixed_is_named_with_the_reason(tmp_path):
    states = [Points().state_dict() for _ in range(2)]
    lowerings = [lowered_again(Points(), state, tmp_path, "mxint") for state in states]
    text = next(_differences(*(emit_design(each.integer, 12) for each in lowerings)))
    assert "has a fixed memory, WEIGHT_FILE, whose contents differ" in text
    assert "blocks with shared exponents are fixed; use a format such as 8.auto" in text


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
    for name, own, other in CHANGED:
        with pytest.raises(ConfigError, match=rf"{name}: .* has {own}, got {other}; leave it out"):
            emit(replace(settings, **{name: other}), workload())


@pytest.mark.long
@TOOLS
def test_other_weights_keep_the_folds_and_fifos_of_a_device(tmp_path, retrained):
    out, again = tmp_path / "out", tmp_path / "again"
    device = {**SETTINGS, "fold": 0, "device": "ecp5-25", "shrink_fifos": True}
    emit(EmitConfig(out=out, weight_memory="loadable", **device), workload())
    emit(EmitConfig(out=again, start_from=out, weights_from=retrained, **AGAIN), workload())
    for name in ("rtl/top.sv", "folds.json", "design.json"):
        assert (out / name).read_bytes() == (again / name).read_bytes()
    assert check_again(EmitConfig(out=again, check_only=True))["verification"]


@pytest.mark.long
@TOOLS
def test_a_retrained_decoder_reads_one_token_at_a_time(tmp_path):
    out, again = tmp_path / "out", tmp_path / "again"
    torch.manual_seed(0)
    rows = torch.randint(1, WORDS, (60, LENGTH))
    parts = [(part, part % 3) for part in (rows[:40], rows[40:])]
    given = Workload.of(Learned(), *parts, task="token-classification", device="cpu")
    settings = {**SETTINGS, "fold": 40, "samples": 2}
    emit(EmitConfig(out=out, decode=True, weight_memory="loadable", **settings), given)
    state = given.model.state_dict()  # embeddings are fixed memories
    state |= {name: x / 2 for name, x in state.items() if "read" in name or "write" in name}
    torch.save(state, tmp_path / "new.pt")
    settings = {**AGAIN, "samples": 2, "start_from": out, "weights_from": tmp_path / "new.pt"}
    result = emit(EmitConfig(out=again, **settings), given)
    assert result["decoder"]["tokens"] == LENGTH and result["pytorch"]["different"] == 0
    assert (out / "rtl/top.sv").read_bytes() == (again / "rtl/top.sv").read_bytes()


@pytest.mark.long
@TOOLS
def test_scales_of_other_weights_are_loaded(tmp_path, retrained):
    out, again = tmp_path / "out", tmp_path / "again"
    scaled = {**SETTINGS, "formats": "scale_integer:width=8", "weight_memory": "loadable"}
    emit(EmitConfig(out=out, **scaled), workload())
    result = emit(
        EmitConfig(out=again, start_from=out, weights_from=retrained, **AGAIN), workload()
    )
    assert result["pytorch"]["largest"] <= 1
    assert (out / "rtl/top.sv").read_bytes() == (again / "rtl/top.sv").read_bytes()
    assert check_again(EmitConfig(out=again, check_only=True))["verification"]


@pytest.mark.long
@TOOLS
def test_fixed_weights_stay(tmp_path, retrained):
    out = tmp_path / "out"
    emit(EmitConfig(out=out, **SETTINGS), workload())
    assert not (out / "weights").exists() and not (out / "quantized.mz").exists()
    with pytest.raises(ConfigError, match="are fixed. Emit it with --weight-memory"):
        emit(EmitConfig(start_from=out, weights_from=retrained, **AGAIN), workload())
