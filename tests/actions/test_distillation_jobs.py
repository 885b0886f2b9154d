"""Jobs that train against a teacher: `--distill` and `chop.compress(distill=...)`."""

import json
import random
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import chop
from chop.actions.compress.job import compress
from chop.actions.compress.ptq import quantize_after_training
from chop.actions.compress.settings import CompressConfig
from chop.actions.search.job import run_search
from chop.actions.search.nas import JOB as NAS_JOB
from chop.actions.search.nas import NasSubject
from chop.actions.search.precision import export
from chop.actions.search.precision_subject import PrecisionSubject
from chop.actions.search.settings import NasConfig, PrecisionConfig
from chop.actions.sweep.prune import prune_sweep
from chop.actions.sweep.quantize import quantize_sweep
from chop.actions.sweep.settings import PruneSweepConfig, QuantizeSweepConfig
from chop.data import load_dataset
from chop.errors import ChopError, ConfigError
from chop.formats import parse_format_string
from chop.models import load_model
from chop.problems.mixed_precision.problem import PrecisionProblem
from chop.runs import read_manifest
from chop.train import Distillation, fit, read_rows
from chop.workloads.workload import Workload, raise_to_graph
from tests import programs
from tests.actions.test_own_functions import FILE
from tests.programs import COMMAND
from tests.workloads import graph, plain, rows

SWEEP = {"qat_epochs": 2, "qat_lr": 1e-2, "widths": "3,8"}


def workload(**further):
    train, test = rows()
    return Workload.of(plain(), train, test, name="points", device="cpu", **further)


def lines_in(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def qat(folder, **settings):
    """QAT accuracies of a sweep, and its journal's training records."""
    config = QuantizeSweepConfig(out=folder, **{**SWEEP, **settings})
    table = quantize_sweep(config, workload())
    journal = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    records = [line["settings"]["training"] for line in journal if "training" in line["settings"]]
    return [row["QAT"] for row in table], records


@pytest.mark.long
def test_a_sweep_trains_against_the_float_model(tmp_path, capsys):
    scores, records = qat(tmp_path, distill=True, distill_alpha=1.0, distill_temperature=2.0)
    layers = {"hidden": "mse", "hidden_weight": 5.0}
    assert records[0]["distill"] == {"alpha": 1.0, "temperature": 2.0, **layers}
    own = workload()
    mg = raise_to_graph(own)
    config = QuantizeSweepConfig(**SWEEP)
    number_format = parse_format_string("3.1")
    mg = quantize_after_training(mg, number_format, config.operators, own, 256)
    given = {"teacher": plain(), "alpha": 1, "temperature": 2, "hidden": "mse"}
    fit(mg.model, own.train, epochs=2, lr=1e-2, seed=0, batch_size=64, distill=given)
    assert own.evaluate(mg.model, own.test) == scores[0]
    shown = " ".join(capsys.readouterr().out.split())
    assert "Fine-tuned against the float model (distillation): 1 of the difference" in shown
    assert json.loads((tmp_path / "report.json").read_text())["assumptions"]


@pytest.mark.long
def test_other_settings_of_the_distillation_are_other_points(tmp_path, capsys):
    first, _ = qat(tmp_path)
    second, records = qat(tmp_path, distill=True)
    assert [("distill" in record) for record in records] == [False, False, True, True]
    assert first != second and lines_in(tmp_path / "points.jsonl") == 3 + 2 + 2
    again, records = qat(tmp_path, distill=True)
    assert again == second and len(records) == 4
    # The report of points from the journal names the teacher as well.
    assert "distillation" in json.loads((tmp_path / "report.json").read_text())["assumptions"][-1]
    _, records = qat(tmp_path, distill=True, distill_hidden="none")
    assert len(records) == 6 and set(records[-1]["distill"]) == {"alpha", "temperature"}


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_sweep_with_a_teacher_ends_like_an_unbroken_one(tmp_path):
    command = [COMMAND, "sweep", "quantize", "--model", "mlp", "--limit", "300", "--distill"]
    command += ["--widths", "4:8:2", "--qat-epochs", "3"]
    whole_run, broken = tmp_path / "whole", tmp_path / "broken"
    assert programs.run(*command, "--out", whole_run).returncode == 0
    points = broken / "points.jsonl"
    with programs.started(*command, "--out", broken) as process:
        while process.is_alive() and lines_in(points) < 3:
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.02))
    assert programs.run(*command, "--out", broken).returncode == 0
    for name in ("table.csv", "table.md", "accuracy.svg"):
        assert (broken / name).read_bytes() == (whole_run / name).read_bytes()


@pytest.mark.long
def test_a_pruned_sweep_trains_against_the_float_model(tmp_path):
    config = {"sparsity": "0.5", "methods": ("l1-norm",), "finetune_epochs": 1, "out": tmp_path}
    table = prune_sweep(PruneSweepConfig(**config, distill=True), workload())
    others = prune_sweep(PruneSweepConfig(**config), workload())
    assert table[0]["pruned"] == others[0]["pruned"]
    assert lines_in(tmp_path / "points.jsonl") == 4


def compressed(out, **settings):
    train, test = rows()
    settings = {"formats": ("3.1",), "qat": "all", "qat_epochs": 2, "qat_lr": 1e-2, **settings}
    settings |= {"keep_best": True, "bench_seconds": 0, "onnx": False, "out": out}
    return chop.compress(plain(), {"train": train}, test, **settings).result


@pytest.mark.long
def test_compress_trains_against_the_model_or_another(tmp_path):
    untaught = compressed(tmp_path / "a")
    taught = compressed(tmp_path / "b", distill=True)
    assert untaught["rows"][2] != taught["rows"][2] and taught["rows"][2]["method"] == "QAT"
    assert taught["config"]["distill"] is True and untaught["config"]["distill"] is False
    assert any("float model (distillation)" in text for text in taught["assumptions"])
    assert not any("distillation" in text for text in untaught["assumptions"])
    written = json.loads((tmp_path / "b" / "result.json").read_text())
    assert written["assumptions"] == taught["assumptions"]
    other = plain()
    nn.init.normal_(other.last.weight)
    same = {"teacher": graph(), "hidden": "mse"}  # layers of given teachers count on request
    forms = [other, same, {"teacher": other}, Distillation(teacher=other)]
    results = [compressed(tmp_path / "c", distill=given) for given in forms]
    assert results[0]["rows"] == results[2]["rows"] == results[3]["rows"]
    assert results[0]["rows"] != taught["rows"] and results[1]["rows"] == taught["rows"]
    assert any("given teacher (distillation)" in text for text in results[0]["assumptions"])
    config = compressed(tmp_path / "d", distill=True, distill_alpha=0.25)["config"]
    assert config["distill_alpha"] == 0.25 and config["distill_temperature"] is None
    with pytest.raises(ConfigError, match="'distill_alpha' is given twice"):
        compressed(tmp_path / "d", distill={"alpha": 0.5}, distill_alpha=0.25)


def test_a_teacher_of_other_classes_is_refused_before_any_work(tmp_path, capsys):
    other = nn.Linear(16, 7)
    with pytest.raises(ConfigError, match=r"teacher's outputs have the shape \(3, 7\)"):
        compressed(tmp_path, distill=other)
    assert "PTQ" not in capsys.readouterr().out


@pytest.mark.long
def test_a_teacher_is_a_checkpoint_in_settings(tmp_path):
    graph().export(tmp_path / "teacher")
    taught = compressed(tmp_path / "a", distill=True)
    config = CompressConfig(
        formats=("3.1",),
        qat="all",
        qat_epochs=2,
        qat_lr=1e-2,
        keep_best=True,
        bench_seconds=0,
        onnx=False,
        out=tmp_path / "b",
        distill=True,
        distill_teacher=str(tmp_path / "teacher"),
        distill_hidden="mse",
    )
    train, test = rows()
    own = Workload.of(plain(), train, test)
    result = compress(config, own)
    assert result["rows"] == taught["rows"]
    assert any("against 'teacher' (distillation)" in text for text in result["assumptions"])
    assert read_manifest(tmp_path / "b").settings["distill_teacher"] == str(tmp_path / "teacher")
    digits = read_rows(load_dataset("digits", limit=20)["train"])
    named = Workload.of(load_model("mlp"), digits, teacher="mlp", device="cpu")
    assert named.evaluate(named.teacher, digits) > 0.8
    with pytest.raises(ChopError, match="nowhere"):
        compress(replace(config, distill_teacher="./nowhere"), own)


@pytest.mark.long
def test_a_model_that_a_function_judges_learns_without_labels_and_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "net"}
    exec(FILE, namespace)
    settings = {"formats": ("2.auto",), "keep_best": True, "bench_seconds": 0}
    found = chop.compress(
        namespace["Boxes"](),
        namespace["X"],
        evaluate=namespace["closeness"],
        distill=True,
        qat_epochs=30,
        qat_lr=1e-2,
        **settings,
    )
    _, rounded, trained = (row["closeness"] for row in found.result["rows"])
    assert trained > rounded + 0.02
    with pytest.raises(ConfigError, match="expected alpha 1"):
        chop.compress(
            namespace["Boxes"](),
            namespace["X"],
            evaluate=namespace["closeness"],
            distill={"alpha": 0.5},
            **settings,
        )


def subject(folder, **settings):
    settings = {"widths": "3,8", "goals": ("accuracy",), "epochs": 1, "lr": 1e-2, **settings}
    return PrecisionSubject(PrecisionConfig(out=folder, **settings), workload())


def test_trials_of_a_precision_search_learn_the_float_model(tmp_path):
    own = subject(tmp_path, distill=True)
    config = own.problem.uniform("3.mse")
    value = own.problem.measure(config, lambda *_: None)
    assert value == own.problem.measure(config, lambda *_: None)
    untaught = subject(tmp_path)
    assert value["kl"] != untaught.problem.measure(config, lambda *_: None)["kl"]
    assert own.identity != untaught.identity and json.dumps(own.identity["training"])
    assert set(untaught.identity["training"]) == {"epochs", "lr", "batch_size", "seed"}
    layers = {"hidden": "mse", "hidden_weight": 5.0}
    assert own.identity["training"]["distill"] == {"alpha": 0.9, "temperature": 2.0, **layers}


def test_a_problem_in_python_has_its_graph_as_the_teacher():
    train, test = rows()
    training = {"epochs": 1, "lr": 1e-2, "batch_size": 64}
    values = []
    for distill in (None, True, {"alpha": 1.0}, plain()):
        given = {**training, "distill": distill}
        problem = PrecisionProblem(graph(), train, test, ranges={"width": (3,)}, training=given)
        values.append(problem.measure(problem.uniform("3.mse"), lambda *_: None)["kl"])
    assert len({*values[:3]}) == 3 and values[1] == pytest.approx(values[3], rel=1e-4)
    assert values[2] < values[0]


def test_a_search_exports_its_distillation_to_compress(tmp_path, monkeypatch):
    own = subject(tmp_path, distill=True, distill_alpha=1.0)
    monkeypatch.setattr("chop.actions.search.precision.PrecisionSubject", lambda config: own)
    recipe = export(own.config, own.problem.uniform("3.mse"))
    names = {name: x for name, x in recipe.items() if name.startswith("distill")}
    assert names["distill"] is True and names["distill_alpha"] == 1.0
    plain_config = PrecisionConfig(widths="3,8", epochs=1)
    assert plain_config.distill_settings() == {}


def test_the_weight_of_layers_needs_their_comparison():
    given = {"distill": True, "distill_hidden_weight": 2.0}
    config, own = PruneSweepConfig(**given), workload()
    layers = {"hidden": "mse", "hidden_weight": 2.0}
    expected = {"alpha": 0.9, "temperature": 2.0, **layers}
    assert own.tuning(1, None, config)["distill"] == expected
    with pytest.raises(ConfigError, match="hidden_weight 2 applies to a comparison of layers"):
        own.tuning(1, None, PruneSweepConfig(**given, distill_hidden="none"))


@pytest.mark.long
def test_architectures_learn_the_given_model(tmp_path, monkeypatch):
    data = load_dataset("digits", limit=80)
    split = read_rows(data["train"]), read_rows(data["test"])
    own = Workload(load_model("vit"), "vit", "digits", *split, torch.device("cpu"), 1, 1e-3)
    fields = {"num_hidden_layers": [1, 2]}
    quick = {"fields": fields, "epochs": 1, "trials": 2, "sampler": "random", "out": tmp_path}
    config = NasConfig(model="vit", **quick, distill=True, distill_temperature=4.0)
    monkeypatch.setattr("chop.workloads.load.load_workload", lambda config: own)
    given = NasSubject(config, own).measure.training
    assert given["distill"].temperature == 4 and given["distill"].teacher.model is own.model
    assert given["distill"].resolve(own.task).hidden == "none"
    weighted = NasConfig(model="vit", **quick, distill=True, distill_hidden_weight=2.0)
    with pytest.raises(ConfigError, match="hidden_weight 2 applies to a comparison of layers"):
        NasSubject(weighted, own)
    assert len(run_search(NAS_JOB, config).measured) == 2
    with pytest.raises(ConfigError, match="settings|problem|another"):
        run_search(NAS_JOB, NasConfig(model="vit", **quick))


REFUSED = {
    "no epochs": ({"distill": True, "qat_epochs": 0}, "nothing is trained, since qat_epochs is 0"),
    "off": ({"distill_alpha": 0.5}, "distill_alpha: applies to distill, which is off"),
    "beyond": ({"distill": True, "distill_alpha": 2.0}, "expected 0 to 1"),
    "by block": (
        {"distill": True, "by_block": True, "formats": ("mxint",), "method": ("gptq",)},
        "distill: not supported with by_block",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_have_no_effect_are_refused(name):
    settings, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        CompressConfig(**settings)


def test_searches_without_training_refuse_a_teacher():
    with pytest.raises(ConfigError, match="nothing is trained, since epochs is 0"):
        PrecisionConfig(widths="3,8", distill=True)
    with pytest.raises(ConfigError, match="since finetune_epochs is 0"):
        PruneSweepConfig(distill=True, finetune_epochs=0)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_teacher_of_another_dtype_keeps_its_modes(tmp_path, dtype):
    goal = plain().to(dtype).train()
    goal.last.eval()
    taught = compressed(tmp_path / "a", distill=goal)
    assert taught["rows"][2]["method"] == "QAT"
    assert goal.training and not goal.last.training
    assert not any("converted" in text for text in taught["assumptions"])
