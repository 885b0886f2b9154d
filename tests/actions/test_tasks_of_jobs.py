"""Jobs on yes and no, on rare classes, and on labels that were standardized for training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score
from torch import nn

import chop
from chop.actions.compress.job import CompressConfig, compress
from chop.errors import ConfigError
from chop.train import fit
from chop.workloads.settings import WorkloadConfig

NET = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
"""


def net(outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, outputs))


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Writes a table, and the weights of a model that was trained on it."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    x = torch.randn(240, 3, generator=torch.Generator().manual_seed(0))

    def write(labels, target, task):
        lines = [
            ",".join([*map(str, row), str(y)]) for row, y in zip(x.tolist(), labels, strict=True)
        ]
        Path("rows.csv").write_text("\n".join(["a,b,c,label", *lines]))
        model = net()
        fit(model, (x, target), task=task, epochs=40, lr=2e-2)
        save_file(model.state_dict(), "net.safetensors")
        return {
            "model": "net.py:Net", "weights": "net.safetensors", "dataset": "rows.csv",
            "formats": ("8.auto",), "qat_epochs": 0, "bench_seconds": 0,
        }  # fmt: skip

    return x, write


def test_a_table_of_yes_and_no(table):
    x, write = table
    target = (x.sum(1) > 1).long()
    settings = write(["yes" if y else "no" for y in target.tolist()], target, "binary")
    with pytest.raises(ConfigError, match=r"answers with 1 number, .* 'binary' or 'regression'"):
        compress(CompressConfig(**settings))
    found = compress(CompressConfig(**settings, task="binary", metric="roc_auc", max_drop=0.05))
    assert found["task"] == "binary" and found["rows"][0]["roc_auc"] > 0.9
    assert found["saved"]["format"] == "integer 8.auto"


def test_labels_that_were_standardized(table):
    x, write = table
    target = x @ torch.tensor([1.0, -2.0, 0.5])
    raw = (300 + 40 * target).tolist()
    settings = write(raw, target, "regression")
    with pytest.raises(ConfigError, match="--label-mean and --label-std of labels that were stand"):
        compress(CompressConfig(**settings))
    found = compress(CompressConfig(**settings, label_mean=300.0, label_std=40.0, max_drop=0.05))
    assert found["rows"][0]["r2"] > 0.9
    settings = write([int(y > 0) for y in target.tolist()], (target > 0).long(), "binary")
    with pytest.raises(ConfigError, match="^label_mean and label_std: are of numbers, and the"):
        compress(CompressConfig(**settings, label_mean=1.0))


@pytest.mark.parametrize(
    "given",
    [{"label_std": 0.0}, {"label_mean": float("nan")}, {"label_mean": 1.0, "task": "binary"}],
)
def test_numbers_that_cannot_standardize(given):
    with pytest.raises(ConfigError, match=rf"^(WorkloadConfig\.)?{next(iter(given))}: "):
        WorkloadConfig(**given)


def test_a_rare_class_has_metrics_that_judge_it(tmp_path):
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 1.4).long()
    with pytest.raises(ConfigError, match=r"one class: metric balanced_accuracy or f1 or roc_auc"):
        chop.compress(net(2), (x, y), out=tmp_path, formats=("8.auto",), bench_seconds=0)


def test_several_answers_a_row(tmp_path):
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    y = (x > 0).long()
    model = net(3)
    fit(model, (x, y), task="multilabel", epochs=30, lr=2e-2)
    found = chop.compress(
        model, (x, y), task="multilabel", metric="roc_auc", out=tmp_path, bench_seconds=0,
        formats=("8.auto", "2.auto"), qat_epochs=3, qat_lr=1e-2, max_drop=0.02, keep_best=True,
    )  # fmt: skip
    assert [row["method"] for row in found.result["rows"]] == ["float", "PTQ", "PTQ", "QAT"]
    assert found.result["rows"][3]["roc_auc"] > found.result["rows"][2]["roc_auc"]
    with torch.no_grad():
        told = roc_auc_score(y.numpy(), found.model(x).numpy(), average="macro")
    assert np.isfinite(told) and told > 0.9
