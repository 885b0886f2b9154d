"""Pictures of the user's own: the size and the scale of pixels are known, given, or said."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from chop.errors import ConfigError
from chop.workloads.load import load_workload
from chop.workloads.settings import WorkloadConfig

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 2)

    def forward(self, pixel_values):
        return self.fc(pixel_values.flatten(1))

class Any(Net):
    def forward(self, pixel_values):
        return self.fc(pixel_values.new_zeros(len(pixel_values), 48))

class Told(Net):
    default_cfg = {"input_size": (3, 4, 4), "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.25, 1.0)}

class Number(Net):
    default_cfg = {"mean": 0.25, "std": 0.5}

class Mean(Net):
    default_cfg = {"mean": (0.25,)}

class Deviation(Net):
    default_cfg = {"std": 0.5}

class Pairs(Net):
    default_cfg = [("mean", 0.5)]

class Text(Net):
    default_cfg = {"mean": "0.5", "std": "0.5"}

class Zero(Net):
    default_cfg = {"mean": (0.5,), "std": (0.0,)}

class Side(Net):
    default_cfg = {"input_size": 4}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    draw = np.random.default_rng(0)
    for split, name in [("train", "a"), ("train", "b"), ("test", "a"), ("test", "b")]:
        folder = tmp_path / "pictures" / split / name
        folder.mkdir(parents=True)
        for number in range(4):
            pixels = draw.integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")

    def made(net="Net", **settings):
        return WorkloadConfig(
            **{
                "model": f"{tmp_path}/net.py:{net}",
                "dataset": str(tmp_path / "pictures"),
                "out": tmp_path / "out",
                "device": "cpu",
                **settings,
            }
        )

    return made


def pixels(workload):
    return workload.test.columns["pixel_values"][0]


SCALES = {
    "assumed": ("Net", {}, (0.5,), (0.5,), "an assumption"),
    "of the class": ("Told", {}, (0.1, 0.2, 0.3), (0.5, 0.25, 1.0), "default_cfg of Told"),
    "one number of the class": ("Number", {}, (0.25,), (0.5,), "default_cfg of Number"),
    "mean of the class": (
        "Mean",
        {"pixel_std": (0.5,)},
        (0.25,),
        (0.5,),
        "as set by --pixel-std; the other is as default_cfg",
    ),
    "per channel": (
        "Told",
        {"pixel_mean": (0.4, 0.5, 0.6), "pixel_std": (0.2, 0.3, 0.4)},
        (0.4, 0.5, 0.6),
        (0.2, 0.3, 0.4),
        "as set by --pixel-mean and --pixel-std",
    ),
    "mean alone": (
        "Told",
        {"pixel_mean": (0.25,)},
        (0.25,),
        (0.5, 0.25, 1.0),
        "as set by --pixel-mean; the other is as default_cfg",
    ),
}


@pytest.mark.parametrize("case", SCALES)
@pytest.mark.sampled(3)
def test_scale_of_pixels(config, capsys, case):
    net, settings, mean, std, source = SCALES[case]
    found = pixels(load_workload(config(net, **settings)))
    assert source in " ".join(capsys.readouterr().out.split())
    raw = pixels(load_workload(config(net, pixel_mean=(0.0,), pixel_std=(1.0,))))
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    torch.testing.assert_close(found, (raw - mean) / std)
    assert raw.min() >= 0 and 0.9 < raw.max() <= 1


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (3, 4, 4)),
        ({"image_size": (6,)}, (3, 6, 6)),
        ({"image_size": (6, 8), "channels": 1}, (1, 6, 8)),
        ({"channels": 1}, (1, 4, 4)),
    ],
)
def test_size_of_pictures(config, settings, shape):
    assert pixels(load_workload(config("Any", **settings))).shape == shape


def test_a_processor_s_configuration_tells(tmp_path, config):
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 4, "hidden_sizes": [4], "depths": [1], "layer_type": "basic"}
    model = ResNetForImageClassification(ResNetConfig(num_labels=2, **sizes))
    model.save_pretrained(tmp_path / "model")
    scale = {"image_mean": [0.1] * 3, "image_std": [0.2] * 3, "size": {"height": 8, "width": 8}}
    (tmp_path / "model" / "preprocessor_config.json").write_text(json.dumps(scale))
    own = pixels(load_workload(config(model=str(tmp_path / "model"))))
    assert own.shape == (3, 8, 8)
    given = config(model=str(tmp_path / "model"), pixel_mean=(0.0,), pixel_std=(1.0,))
    torch.testing.assert_close(own, (pixels(load_workload(given)) - 0.1) / 0.2)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pixel_mean": (0.1, 0.2)}, "pixel_mean: expected one number, or one for each of 3"),
        ({"pixel_std": (1.0,) * 4}, "pixel_std: expected one number, or one for each of 3"),
        ({"net": "Told", "channels": 1}, "pixel_mean: expected one number, or one for each of 1"),
        ({"net": "Mean"}, "default_cfg of Mean has the mean of pixels but no std"),
        ({"net": "Deviation"}, "has the std of pixels but no mean: .* pass --pixel-mean"),
        ({"net": "Pairs"}, "default_cfg of Pairs: expected a table of .*, got .*list"),
        ({"net": "Text"}, "default_cfg of Text: mean: expected"),
        ({"net": "Zero"}, "default_cfg of Zero: std: got .* expected more than 0"),
        ({"net": "Side"}, "default_cfg of Side: input_size: expected"),
        ({"image_size": (2, 3, 4)}, "image_size: got .* the height and the width"),
        ({"image_size": (0,)}, "image_size"),
        ({"channels": 2}, "channels: got 2, expected 1"),
        (
            {"model": "vit", "dataset": None, "pixel_mean": (0.1,)},
            "model: pass your own with --model, .* or leave out pixel_mean",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(config, settings, message):
    with pytest.raises(ConfigError, match=message):
        load_workload(config(**settings))


def test_texts_have_no_pixels(tmp_path, config):
    (tmp_path / "rows.csv").write_text("a,b,label\n" + "1,2,0\n3,4,1\n" * 5)
    with pytest.raises(ConfigError, match="channels is for images: data set .* has no images"):
        load_workload(config(dataset=str(tmp_path / "rows.csv"), channels=1))
