"""Jobs on yes and no, on rare classes, on standardized labels, and on a class for each pixel."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.metrics import jaccard_score
from torch import nn

import chop
from chop.actions.compress.job import CompressConfig, compress
from chop.errors import ConfigError, options_in_messages
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


@pytest.mark.long
def test_a_table_of_yes_and_no(table):
    x, write = table
    target = (x.sum(1) > 1).long()
    settings = write(["yes" if y else "no" for y in target.tolist()], target, "binary")
    with pytest.raises(ConfigError, match=r"model returns 1 number, .* 'binary' or 'regression'"):
        compress(CompressConfig(**settings))
    found = compress(CompressConfig(**settings, task="binary", metric="roc_auc", max_drop=0.05))
    assert found["task"] == "binary" and found["rows"][0]["roc_auc"] > 0.9
    assert found["saved"]["format"] == "integer 8.auto"


@pytest.mark.long
def test_labels_that_were_standardized(table):
    x, write = table
    target = x @ torch.tensor([1.0, -2.0, 0.5])
    raw = (300 + 40 * target).tolist()
    settings = write(raw, target, "regression")
    with pytest.raises(ConfigError, match="--label-mean and --label-std for labels that were"):
        compress(CompressConfig(**settings))
    found = compress(CompressConfig(**settings, label_mean=300.0, label_std=40.0, max_drop=0.05))
    assert found["rows"][0]["r2"] > 0.9
    settings = write([int(y > 0) for y in target.tolist()], (target > 0).long(), "binary")
    with pytest.raises(ConfigError, match="^label_mean and label_std: they apply to numbers"):
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
    reason = "one class: metric balanced_accuracy or f1 or roc_auc"
    with options_in_messages(False), pytest.raises(ConfigError, match=reason):
        chop.compress(net(2), (x, y), out=tmp_path, formats=("8.auto",), bench_seconds=0)


CONVOLUTIONS = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(1, 8, 3, padding=1, stride=2)
        self.b = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, image):
        return {"out": self.b(self.a(image).relu()), "aux": image}
"""


def squares(count, seed=0):
    """Pictures (N, 1, 12, 12) with a bright and a dark square, and a border that is void."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(100, 140, (count, 12, 12)).astype(np.uint8)
    masks = np.zeros((count, 12, 12), np.uint8)
    for i in range(count):
        for label, value in ((1, 250), (2, 0)):
            row, column = draw.integers(0, 7, 2)
            pixels[i, row : row + 5, column : column + 5] = value
            masks[i, row : row + 5, column : column + 5] = label
    masks[:, 0] = 255
    return pixels, masks


def tensors(pixels, masks):
    return torch.tensor(pixels)[:, None] / 255 * 2 - 1, torch.tensor(masks)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A folder of pictures and masks, and the weights of a model that was trained on them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "squares_net", raising=False)
    Path("squares_net.py").write_text(CONVOLUTIONS)
    from squares_net import Net

    torch.manual_seed(0)
    model = Net()
    fit(model, tensors(*squares(80)), epochs=25, lr=2e-2, batch_size=20)
    save_file(model.state_dict(), "net.safetensors")
    for split, seed in (("train", 0), ("test", 1)):
        pixels, masks = squares(80, seed)
        for kind, values in (("images", pixels), ("masks", masks)):
            Path("squares", split, kind).mkdir(parents=True)
            for i, value in enumerate(values):
                Image.fromarray(value).save(f"squares/{split}/{kind}/{i}.png")
    settings = {
        "model": "squares_net.py:Net", "weights": "net.safetensors", "dataset": "squares",
        "formats": ("8.auto", "2.auto"), "qat_epochs": 1, "bench_seconds": 0,
    }  # fmt: skip
    return model, settings


@pytest.mark.long
def test_a_folder_of_pictures_and_masks(trained):
    model, settings = trained
    found = compress(CompressConfig(**settings, keep_best=True))
    assert (found["task"], found["metric"]["name"]) == ("segmentation", "mean_iou")
    pixels, masks = squares(80, 1)
    with torch.no_grad():
        logits = model(tensors(pixels, masks)[0])["out"]
    guessed = nn.functional.interpolate(logits, (12, 12), mode="bilinear").argmax(1).numpy()
    wanted = jaccard_score(masks[masks < 255], guessed[masks < 255], average="macro")
    assert found["rows"][0]["mean_iou"] == pytest.approx(wanted, abs=1e-9)
    assert wanted > 0.7
    assert any("a class for each pixel: task segmentation" in x for x in found["assumptions"])
    assert [row["method"] for row in found["rows"]] == ["float", "PTQ", "PTQ", "QAT"]


@pytest.mark.long
def test_python_takes_tensors_and_half_precision(trained, tmp_path):
    model, _ = trained
    x, y = tensors(*squares(80))
    data = torch.utils.data.DataLoader(
        [{"image": a, "labels": b} for a, b in zip(x, y, strict=True)], batch_size=8
    )
    settings = {"formats": ("8.auto",), "bench_seconds": 0, "max_drop": 0.05}
    rows = torch.utils.data.TensorDataset(x.bfloat16(), y)
    found = chop.compress(model.bfloat16(), rows, out=tmp_path / "b", **settings)
    assert found.result["task"] == "segmentation" and found.result["saved"] is not None
    found = chop.compress(model.float(), data, out=tmp_path / "a", **settings)
    assert found.model(x[:1])["out"].shape == (1, 3, 6, 6)
    assert found.result["rows"][1]["mean_iou"] > 0.7


def test_masks_of_0_and_255_are_said_to_have_one_class(trained, tmp_path):
    model, _ = trained
    x, y = tensors(*squares(80))
    y = torch.where(y == 1, 255, 0)
    with pytest.raises(
        ConfigError,
        match="one class, so that mean_iou .* Pixels with the value 255 do not count; save the for",
    ):
        chop.compress(model, (x, y), out=tmp_path, bench_seconds=0)
