"""Measuring by training, and the three modes of compression."""

import pytest
import torch
from torch import nn

from chop.errors import ConfigError
from chop.nn.quantized import QuantLinear
from chop.problems.nas.compression import Compression, size_bytes
from chop.problems.nas.training import TrainedMeasure, split_rows
from chop.search import Choice, Pruned, SearchSpace
from chop.train import Rows, evaluate

QUANTIZE = {
    "by": "type",
    "linear": {"config": {"name": "integer", "width": 2, "frac_width": "auto"}},
}
PRUNE = {"weight": {"sparsity": 0.5, "method": "snip"}}
BOTH = {"quantize_transform_pass": QUANTIZE, "prune_transform_pass": PRUNE}
SPACE = SearchSpace((Choice("width", {"8": 8, "16": 16}),))


@pytest.fixture(scope="module")
def rows():
    torch.manual_seed(0)
    x = torch.randn(240, 6)
    return Rows({"x": x}, (x[:, :3].sum(1) > x[:, 3:].prod(1)).long())


def build(config):
    torch.manual_seed(0)
    width = SPACE.values(config)["width"]
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))


def measure(rows, **settings):
    training = {"epochs": 12, "lr": 0.05, "batch_size": 32, **settings.pop("training", {})}
    return TrainedMeasure(build, *split_rows(rows), training, **settings)


def never(step, value):
    raise AssertionError("a report")


def test_rows_are_split_once_for_all(rows):
    train, validation = split_rows(rows, 0.25)
    assert (len(train), len(validation)) == (180, 60)
    both = torch.cat([train.columns["x"], validation.columns["x"]])
    assert torch.equal(both.sort(0).values, rows.columns["x"].sort(0).values)
    again = split_rows(rows, 0.25)[1]
    assert torch.equal(again.labels, validation.labels)
    with pytest.raises(ConfigError, match="share: got 1.0"):
        split_rows(rows, 1.0)


def test_one_configuration_always_measures_the_same(rows):
    found = measure(rows)
    first = found({"width": "16"}, lambda step, value: None)
    torch.rand(5)
    assert found({"width": "16"}, lambda step, value: None) == first
    assert first["accuracy"] > 0.8
    assert first["parameters"] == 6 * 16 + 16 + 16 * 2 + 2
    assert first["size_bytes"] == 4 * first["parameters"]
    assert found({"width": "8"}, lambda step, value: None)["parameters"] == 74


def test_accuracy_is_reported_after_each_epoch_but_the_last(rows):
    seen = {}
    found = measure(rows)
    found({"width": "8"}, seen.__setitem__)
    assert list(seen) == list(range(1, 12))
    # What is reported is what a shorter run of the same schedule has learned.
    assert all(0 <= value <= 1 for value in seen.values()) and seen[11] > seen[1] - 0.1
    untouched = measure(rows).trained({"width": "8"})
    reported = found.trained({"width": "8"}, lambda step, value: None)
    pairs = zip(untouched.parameters(), reported.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_pruner_stops_the_training(rows):
    steps = []

    def report(step, value):
        steps.append(step)
        if step == 2:
            raise Pruned("behind")

    with pytest.raises(Pruned):
        measure(rows)({"width": "8"}, report)
    assert steps == [1, 2]


@pytest.mark.long
def test_the_three_modes(rows):
    results, models = {}, {}
    for mode in ("none", "compress", "compress-train"):
        found = measure(rows, compression=Compression(mode, BOTH, epochs=8))
        results[mode] = found({"width": "16"}, lambda step, value: None)
        models[mode] = found.trained({"width": "16"})
    assert type(models["none"][0]) is nn.Linear
    for mode in ("compress", "compress-train"):
        layers = [m for m in models[mode].modules() if isinstance(m, QuantLinear)]
        assert len(layers) == 2
        for layer in layers:
            assert layer.spec.weight.width == 2 and layer.spec.weight.is_fitted
            assert (~layer.weight_mask).sum() == layer.weight.numel() // 2
        assert results[mode]["size_bytes"] < 0.4 * results["none"]["size_bytes"]
        assert results[mode]["parameters"] == results["none"]["parameters"]
    accuracy = {mode: result["accuracy"] for mode, result in results.items()}
    assert accuracy["compress"] < accuracy["none"]
    assert accuracy["compress-train"] > accuracy["compress"]


def test_compression_leaves_the_trained_model(rows):
    model = measure(rows).trained({"width": "8"})
    before = {key: value.clone() for key, value in model.state_dict().items()}
    settings = {"quantize_transform_pass": {**QUANTIZE}}
    compressed = Compression("compress", settings).apply(model, rows, {})
    assert settings == {"quantize_transform_pass": QUANTIZE}
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert size_bytes(compressed) < size_bytes(model) / 5
    assert Compression().apply(model, rows, {}) is model
    assert 0 < evaluate(compressed, rows) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compres", BOTH), "did you mean 'compress'"),
        (("compress",), "compression 'compress' needs pass_args"),
    ],
)
def test_wrong_settings_are_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Compression(*arguments)


def test_a_pass_that_the_pipeline_lacks_is_named(rows):
    wrong = Compression("compress", {"quantze_transform_pass": QUANTIZE})
    with pytest.raises(ConfigError, match="did you mean 'quantize_transform_pass'"):
        wrong.apply(build({"width": "8"}), rows, {})
