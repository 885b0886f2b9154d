"""Searches whose goals are numbers of a circuit: what they write, resume, refuse and emit."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

from chop.actions.emit.job import emit
from chop.actions.emit.settings import EmitConfig
from chop.actions.search import precision, precision_circuit, precision_subject
from chop.actions.search.job import get_settings, run_search
from chop.actions.search.manage import resume_search
from chop.actions.search.precision import JOB
from chop.actions.search.precision_circuit import CIRCUIT, emit_best
from chop.actions.search.precision_subject import PrecisionSubject
from chop.actions.search.settings import PrecisionConfig
from chop.actions.search.several import run_several
from chop.base.notices import forget_notices
from chop.config import parse
from chop.data.points import toy
from chop.errors import ConfigError, UnavailableError, VerificationError
from chop.hardware.costs.devices import parse_device
from chop.hardware.costs.estimate import DesignCost, Usage, design_cost
from chop.ir.graph import MaseGraph
from chop.problems.mixed_precision.costs import COSTS
from chop.runs import read_manifest, start
from chop.search import TrialRecord
from chop.search.objective import select_constraints
from chop.train import fit
from chop.workloads.workload import Workload, raise_for_integers
from tests.hardware.bench import TOOLS
from tests.workloads import rows

OF_CIRCUIT = [name for name, cost in COSTS.items() if cost.is_of_circuit]


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 5))
    fit(model, rows()[0], epochs=4, lr=1e-2)
    return model.eval()


@pytest.fixture
def workload(monkeypatch, trained):
    given = Workload(trained, "chain", "points", *rows(), torch.device("cpu"), 1, 1e-3)
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: given)
    return given


def settings(folder, **given):
    own = {"goals": ("kl",), "budgets": {"lut": 1500}, "folds": (32,), "widths": "4,8"}
    return PrecisionConfig(**{"out": folder, "trials": 4, "device": "ecp5-85", **own, **given})


@pytest.mark.long
@pytest.mark.usefixtures("unpainted")
def test_a_search_keeps_a_budget_of_lookup_tables_and_goes_on(tmp_path, workload):
    config = settings(tmp_path)
    problem = PrecisionSubject(config, workload).problem
    ends = [problem.compute_costs(problem.uniform(text))["lut"] for text in ("4.mse", "8.mse")]
    config = settings(tmp_path, budgets={"lut": sum(ends) / 2})
    first = run_search(JOB, replace(config, trials=2))
    noted = json.loads(json.dumps(get_settings(replace(config, trials=6))))
    result = run_search(JOB, parse(PrecisionConfig, noted))
    assert result.trials[:2] == first.trials and len(result.measured) == 6
    assert result.best.values["lut"] <= sum(ends) / 2 < ends[1]
    assert set(OF_CIRCUIT) <= result.best.values.keys()
    lines = (tmp_path / "precision" / "table.csv").read_text().splitlines()
    table = {row["formats"]: row for row in csv.DictReader(lines)}
    best = table[f"trial {result.best.number}"]
    assert float(best["lut"]) == result.best.values["lut"]
    assert best["dsp"] == f"{result.best.values['dsp']:.0f}" and not table["float"]["lut"]
    page = (tmp_path / "precision" / "report.html").read_text()
    assert "lookup tables" in page and "latency (µs)" in page
    with pytest.raises(ConfigError, match="started with other"):
        run_search(JOB, replace(config, folds=(16,)))


@pytest.mark.long
@pytest.mark.usefixtures("unpainted")
def test_folds_are_a_choice_and_the_device_a_budget(tmp_path, workload):
    config = settings(tmp_path, goals=("kl", "interval"), folds=(8, 32), budgets=None, trials=6)
    limits = {goal.name: goal.bound for goal in select_constraints(config.all_goals())}
    device = parse_device("ecp5-85")
    assert limits == {name: getattr(device, name) for name in ("lut", "ff", "dsp", "bram")}
    result = run_search(JOB, config)
    assert {trial.config["fold"] for trial in result.measured} == {"8", "32"}
    page = (tmp_path / "precision" / "report.html").read_text()
    assert "Formats by layer" in page
    own = {"device": "lut=50,dsp=4,bram=9", "folds": (2, 4), "budgets": {"interval": 1000}}
    small = settings(tmp_path / "small", **own)
    with pytest.raises(ConfigError, match=r"fold 4: budgets: lut=50 cannot .*; fold 2: budgets"):
        run_search(JOB, small)


def test_what_a_device_has_none_of_is_a_budget_too(tmp_path):
    config = settings(tmp_path, device="lut=900,dsp=0,bram=0", budgets={"lut": 500})
    limits = {goal.name: goal.bound for goal in select_constraints(config.all_goals())}
    assert limits == {"lut": 500, "ff": 1800, "bram": 0}  # no circuit takes multipliers


@pytest.mark.long
@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("goals", [("kl",), ("kl", "lut")], ids=str)
def test_mixes_without_a_circuit_fail_and_the_search_goes_on(tmp_path, workload, goals):
    # Blocks of several samples: of the first layer's inputs, which the host rounds, there is one.
    blocks = "mxint:width=6:block_dim=0"
    own = {"formats": ("8.mse", blocks), "widths": None, "goals": goals, "trials": 12}
    budgets = {"lut": 5000} if goals == ("kl",) else {}
    forget_notices()
    with pytest.warns(UserWarning, match="trials without a circuit fail"):
        result = run_search(JOB, settings(tmp_path, budgets=budgets, sampler="random", **own))
    assert result.failed and len(result.measured) + len(result.failed) == 12
    assert all("several samples" in trial.note for trial in result.failed)
    assert all(trial.config["2.data_in"] == blocks for trial in result.failed)
    assert all(trial.config["2.data_in"] == "8.mse" for trial in result.measured)
    lines = (tmp_path / "precision" / "table.csv").read_text().splitlines()
    labels = [row["formats"] for row in csv.DictReader(lines)]
    assert {"float", "8.mse"} <= set(labels) and blocks not in labels


class Normed(nn.Module):
    """Layers with an RMSNorm that is written out between, in another dtype if it is told so."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 8), nn.Module(), nn.Linear(8, 5)
        self.norm.weight = nn.Parameter(torch.rand(8) + 0.5)
        self.dtype = dtype

    def forward(self, x):
        x = self.up(x)
        squares = x.to(self.dtype).pow(2).mean(-1, keepdim=True)
        return self.down(self.norm.weight * (x * torch.rsqrt(squares + 1e-6)).to(x.dtype))


def test_a_norm_that_is_written_out_has_a_circuit_in_a_search(tmp_path):
    torch.manual_seed(0)
    given = Workload.of(Normed(), *toy().values())
    found = PrecisionSubject(settings(tmp_path, operators=("linear",)), given).problem
    assert isinstance(found.layers.mg.model.norm, nn.RMSNorm)
    assert found.compute_costs(found.uniform("8.mse"))["lut"] > 0


def test_why_a_norm_has_no_integer_form_is_told():
    given = Workload.of(Normed(torch.float64), *toy().values())
    forget_notices()
    with pytest.warns(UserWarning, match=r"norm: an RMSNorm .*different dtype than"):
        raise_for_integers(given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"device": "ecp5-58"}, "did you mean 'ecp5-45'|did you mean 'ecp5-85'"),
        ({"emit": True, "place": True, "device": None}, "no tool can place on 'no device'"),
        ({"emit": True, "place": True, "device": "xc7a100t"}, "no tool can place on 'xc7a100t'"),
        ({"budgets": {"bits": 4}}, "device: expected a goal or budget of a circuit"),
        ({"budgets": {"bits": 4}, "device": None}, "folds: expected a goal or budget of a circuit"),
        (
            {"budgets": {}, "device": None, "folds": (), "emit": True},
            "emit: expected a goal or budget",
        ),
        ({"place": True}, "place: add emit"),
        ({"folds": (0,)}, "folds: got 0"),
        ({"emit": True, "epochs": 1}, "emit: expected no epochs"),
        ({"budgets": {"lut": 0}}, "lut: got 0, expected more than 0"),
        ({"goals": ("lut",), "pruner": "asha"}, "'lut' is known before a trial runs"),
        ({"others": "8.none"}, "8.none"),
    ],
    ids=str,
)
def test_settings_that_ask_nothing_of_a_circuit_are_refused(tmp_path, given, reason):
    with pytest.raises(ConfigError, match=reason):
        settings(tmp_path, **given)


def test_a_budget_out_of_reach_is_refused_before_trials(tmp_path, workload):
    with pytest.raises(ConfigError, match=r"lut=10 cannot be met: .* beyond the budget"):
        run_search(JOB, settings(tmp_path, budgets={"lut": 10}))


def test_the_device_of_a_circuit_is_not_that_of_the_model(tmp_path):
    assert settings(tmp_path).torch_device is None
    assert PrecisionConfig(device="cpu").torch_device == "cpu"
    assert EmitConfig(device="ecp5-85").torch_device is None


def note_circuit(folder, trial):
    """The manifest of a circuit that was emitted to its end."""
    told = {"formats": f"mixed precision, trial {trial}"}
    with start("emit", told, folder) as run, run.results():
        pass


@pytest.mark.long
@pytest.mark.usefixtures("unpainted")
def test_a_kill_before_the_circuit_is_made_good_by_the_same_command(
    tmp_path, workload, monkeypatch
):
    """Of several searches: what is written is not searched again, but is it emitted?"""
    emitted = []

    def emit_as_asked(config, found, best, workload):
        emitted.append((config.seed, best.number))
        if len(emitted) == 2:
            raise KeyboardInterrupt
        note_circuit(config.folder / CIRCUIT, best.number)

    monkeypatch.setattr(precision_subject, "check_can_emit", lambda config: None)
    monkeypatch.setattr(precision, "emit_best", emit_as_asked)
    config = settings(tmp_path, seeds=2, trials=2, emit=True, budgets={"lut": 4000})
    with pytest.raises(KeyboardInterrupt):
        run_several(JOB, config)
    second = tmp_path / "precision-sensitivity-seed-1"
    assert read_manifest(second).state == "finished" and not (second / CIRCUIT).exists()
    assert (tmp_path / "precision-sensitivity-seed-0" / CIRCUIT / "manifest.json").exists()
    run_several(JOB, config)  # the one that is missing, and no other
    assert [seed for seed, _ in emitted] == [0, 1, 1] and emitted[1] == emitted[2]
    assert read_manifest(second / CIRCUIT).state == "finished"
    run_several(JOB, config)
    assert len(emitted) == 3
    # A circuit of another trial is none of the best.
    shutil.rmtree(second / CIRCUIT)
    note_circuit(second / CIRCUIT, 77)
    run_several(JOB, config)
    assert emitted[3:] == [emitted[1]]
    shutil.rmtree(second / CIRCUIT)
    resume_search(str(tmp_path), second.name)
    assert emitted[4:] == [emitted[1]] and read_manifest(second / CIRCUIT).state == "finished"


@pytest.mark.parametrize(
    ("device", "has"), [("lut=20000,dsp=0,bram=9", False), ("ice40-hx8k", False), (None, True)]
)
def test_yosys_counts_the_best_as_its_device_makes_products(
    tmp_path, workload, monkeypatch, device, has
):
    config = settings(tmp_path, device=device)
    problem, given = PrecisionSubject(config, workload).problem, []

    def emit_nothing(settings, workload, lower, has_multipliers):
        given.append(has_multipliers)
        raise UnavailableError("no tools")

    monkeypatch.setattr(precision_circuit, "emit", emit_nothing)
    with pytest.raises(UnavailableError):
        emit_best(config, problem, TrialRecord(0, "measured", problem.base()), workload)
    assert given == [has]


@pytest.mark.long
@pytest.mark.tools(*TOOLS)
@pytest.mark.usefixtures("unpainted")
def test_the_best_is_emitted_and_takes_what_was_estimated(tmp_path, workload, monkeypatch):
    config = settings(tmp_path, budgets={"lut": 4000}, trials=3, emit=True)
    result = run_search(JOB, config)
    folder = tmp_path / "precision" / CIRCUIT
    manifest = read_manifest(folder)
    assert manifest.kind == "emit" and manifest.state == "finished"
    assert all(row["equal"] == row["outputs"] for row in manifest.rows if "outputs" in row)
    written = MaseGraph.from_checkpoint(folder / "model")
    family = config.circuit().family
    usage = design_cost(written, 32, family).usage._asdict()
    assert {name: result.best.values[name] for name in usage} == usage
    found = json.loads((folder / "result.json").read_text())
    noted = json.loads((tmp_path / "precision" / "best.json").read_text())
    assert found["accuracy"]["quantized"] == pytest.approx(noted["test_accuracy"])
    emit(EmitConfig(out=folder, check_only=True))
    problem = PrecisionSubject(config, workload).problem
    other = DesignCost(Usage(1, 1, 1, 1), 1, 1)
    monkeypatch.setattr(type(problem.circuit), "design", lambda *_: other)
    with pytest.raises(VerificationError, match="the search estimated"):
        emit_best(config, problem, result.best, workload)
