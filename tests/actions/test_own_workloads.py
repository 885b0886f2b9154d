"""Jobs on models and rows of one's own, whatever the task."""

import csv
import dataclasses
import json

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.actions.compress.job import CompressConfig, compress
from chop.actions.compress.table import Row
from chop.actions.sweep.prune import PruneSweepConfig, prune_sweep
from chop.actions.sweep.quantize import QuantizeSweepConfig, quantize_sweep
from chop.errors import ConfigError
from chop.report.document import read_document
from chop.train import Metric, evaluate, fit
from chop.workloads.workload import Workload
from tests import workloads


def settings(out, **more):
    return CompressConfig(out=out, formats=("8.auto", "2.0"), qat_epochs=0, bench_seconds=0, **more)


@pytest.fixture(scope="module")
def line():
    """A regression that is learned: R2 above 0.9."""
    torch.manual_seed(0)
    x = torch.randn(300, 8)
    y = x @ torch.randn(8) + 0.1 * torch.randn(300)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    fit(model, (x[:200], y[:200]), epochs=40, lr=2e-2)
    return model, (x[:200], y[:200]), (x[200:], y[200:])


def test_the_main_job_on_numbers(line, tmp_path):
    model, train, test = line
    result = compress(settings(tmp_path), Workload.of(model, train, test, name="line"))
    rows = {row["format"]: row for row in result["rows"]}
    exact = evaluate(model, test)
    assert rows["float"]["r2"] == pytest.approx(exact) and exact > 0.9
    assert result["metric"] == {"name": "r2", "higher_is_better": True}
    assert result["saved"]["format"] == "integer 8.auto" and rows["integer 2.0"]["r2"] < 0.8
    saved = MaseGraph.from_checkpoint(tmp_path / "model").model
    assert evaluate(saved, test) == pytest.approx(result["saved"]["r2"], abs=1e-4)
    assert (tmp_path / "r2.svg").is_file() and not (tmp_path / "accuracy.svg").exists()
    told = (tmp_path / "table.md").read_text()
    assert told.startswith("Assumptions:\n") and "\nr2:\n" in told and "% |" not in told
    assert json.loads((tmp_path / "result.json").read_text())["config"]["model"] == "line"


def test_a_model_that_is_one_layer_has_a_page(tmp_path):
    torch.manual_seed(0)
    rows = torch.randn(40, 4), torch.randn(40)
    workload = Workload.of(nn.Linear(4, 1), rows, rows)
    compress(settings(tmp_path, keep_best=True, force=True), workload)
    table, _ = read_document(tmp_path).tables
    (row,) = table.values
    assert row[table.columns.index("layer")] == "weight" and row[table.columns.index("bits")] == 8


def test_the_users_model_stays_as_it_is(line, tmp_path):
    model, before = line[0], [p.clone() for p in line[0].parameters()]
    model.train()
    workload = Workload.of(*line)
    compress(settings(tmp_path), workload)
    assert model.training and not workload.model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.fixture(scope="module")
def language():
    return workloads.language()


def test_the_main_job_on_text(language, tmp_path):
    result = compress(
        CompressConfig(out=tmp_path, formats=("8.auto",), qat_epochs=0, bench_seconds=0), language
    )
    exact = evaluate(language.model, language.test)
    assert result["rows"][0]["perplexity"] == pytest.approx(exact, rel=1e-5) and 1 < exact < 20
    assert result["rows"][1]["perplexity"] == pytest.approx(exact, rel=0.1)
    assert result["metric"] == {"name": "perplexity", "higher_is_better": False}


@pytest.mark.long
def test_sweeps_name_the_metric(line, language, tmp_path):
    workload = Workload.of(*line)
    config = QuantizeSweepConfig(out=tmp_path / "q", widths="2,8", frac="auto", qat_epochs=0)
    rows = quantize_sweep(config, workload)
    assert rows[0]["float"] == pytest.approx(evaluate(line[0], line[2]))
    assert rows[-1]["PTQ"] <= 1 and (tmp_path / "q" / "r2.svg").is_file()
    for row in rows:
        assert row["PTQ (95 % low)"] < row["PTQ"] < row["PTQ (95 % high)"] <= 1
    table = list(csv.DictReader((tmp_path / "q" / "table.csv").read_text().splitlines()))
    assert float(table[0]["float"]) == rows[0]["float"]
    told = (tmp_path / "q" / "table.md").read_text()
    assert "%" not in told.replace("95 %", "") and "100 test rows. The intervals are" in told
    pruning = {"sparsity": "0.5", "finetune_epochs": 1}
    (row,) = prune_sweep(
        PruneSweepConfig(out=tmp_path / "p", methods=("l1-norm",), **pruning), language
    )
    assert 1 < row["float"] < row["fine-tuned"] and (tmp_path / "p" / "perplexity.png").is_file()
    snip = PruneSweepConfig(out=tmp_path / "s", methods=("snip",), **pruning)
    with pytest.raises(ConfigError, match="snip needs a classifier, .* the task is 'regression'"):
        prune_sweep(snip, workload)


def test_one_training_row_is_one_sentence_where_validation_rows_are_a_share_of_them(line, tmp_path):
    model, (x, y), test = line
    workload = Workload.of(model, (x[:1], y[:1]), test)
    message = r"got 1 training row, .* at least two \(.*\), or a validation split"
    with pytest.raises(ConfigError, match=message):
        compress(settings(tmp_path), workload)
    two = Workload.of(model, (x[:2], y[:2]), test).with_validation()
    assert (len(two.train), len(two.validation)) == (1, 1)


def score(predictions, labels):
    return 0.0


@pytest.mark.parametrize(
    "name, message",
    [
        ("<lambda>", "expected a name of letters, digits, _ and -"),
        ("a/b", "expected a name of letters"),
        ("", "expected a name of letters"),
        ("graph", "use that name already"),
        *((field.name, "use that name already") for field in dataclasses.fields(Row)),
    ],
)
def test_a_metric_is_called_what_columns_and_files_can_be_called(line, name, message):
    with pytest.raises(ConfigError, match=f"metric '{name}': .*{message}"):
        Workload.of(*line, metric=Metric(name, score))


def test_a_metric_of_ones_own_names_its_column_and_picture(line, tmp_path):
    workload = Workload.of(*line, metric=Metric("my-score_2", score))
    rows = compress(settings(tmp_path, force=True), workload)["rows"]
    assert rows[0]["my-score_2"] == 0.0 and (tmp_path / "my-score_2.svg").is_file()


def test_no_format_keeps_an_error_of_zero(tmp_path, capsys):
    model = nn.Linear(8, 1, bias=False)
    x = torch.randn(60, 8)
    with torch.no_grad():
        rows = (x, model(x)[:, 0])
    compress(settings(tmp_path), Workload.of(model, rows, rows, metric="mse"))
    told = " ".join(capsys.readouterr().out.split())
    assert "No format is within 1.00% of float" in told
    assert "as the float model's mse is 0" in told and "loses 0.00%" not in told
