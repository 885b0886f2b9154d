"""Mixed-precision search as users of the tutorial write it: a class per layer, by trial."""

from copy import deepcopy

import optuna
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from chop.nn.quantized.modules.linear import (
    LinearBinary,
    LinearBinaryResidualSign,
    LinearBinaryScaling,
    LinearBlockFP,
    LinearBlockLog,
    LinearBlockMinifloat,
    LinearInteger,
    LinearLog,
    LinearMinifloatDenorm,
    LinearMinifloatIEEE,
)
from chop.tools.utils import deepsetattr

CHOICES = [
    torch.nn.Linear,
    LinearInteger,
    LinearMinifloatDenorm,
    LinearMinifloatIEEE,
    LinearLog,
    LinearBlockFP,
    LinearBlockMinifloat,
    LinearBlockLog,
    LinearBinary,
    LinearBinaryScaling,
    LinearBinaryResidualSign,
]
OPERANDS = ("data_in", "weight", "bias")


def keys(**fields):
    return {f"{operand}_{key}": value for operand in OPERANDS for key, value in fields.items()}


def config_for(cls, width=8, frac_width=5, block_size=16):
    """The config dicts that published solutions of the lab pass."""
    floats = keys(width=width, exponent_width=4, exponent_bias=7)
    signs = {"data_in_stochastic": False, "weight_stochastic": False, "bias_stochastic": False}
    signs |= {"data_in_bipolar": True, "weight_bipolar": True, "bias_bipolar": True}
    return {
        LinearInteger: keys(width=width, frac_width=frac_width),
        LinearMinifloatDenorm: floats,
        LinearMinifloatIEEE: floats,
        LinearLog: keys(width=width, exponent_bias=7),
        LinearBlockFP: {
            **keys(width=width, exponent_width=8, exponent_bias=127, block_size=[block_size]),
            "data_in_skip_first_dim": True,
        },
        LinearBlockMinifloat: keys(
            width=width, exponent_width=4, exponent_bias_width=6, block_size=[block_size]
        ),
        LinearBlockLog: keys(width=width, exponent_bias_width=8, block_size=[1, block_size]),
        LinearBinary: {"weight_stochastic": False, "weight_bipolar": True},
        LinearBinaryScaling: {**signs, "binary_training": True},
        LinearBinaryResidualSign: {
            "bypass": False,
            **signs,
            "binary_training": True,
            "data_in_levels": 2,
            "data_in_residual_sign": True,
        },
    }[cls]


def replaced(base_model, choose, **settings):
    """The loop of the tutorial."""
    trial_model = deepcopy(base_model)
    for name, layer in trial_model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            new_layer_cls = choose(name)
            if new_layer_cls == torch.nn.Linear:
                continue
            kwargs = {
                "in_features": layer.in_features,
                "out_features": layer.out_features,
                "bias": layer.bias is not None,
                "config": config_for(new_layer_cls, **settings),
            }
            new_layer = new_layer_cls(**kwargs)
            new_layer.weight.data = layer.weight.data
            if layer.bias is not None:
                new_layer.bias.data = layer.bias.data
            deepsetattr(trial_model, name, new_layer)
    return trial_model


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    return BertForSequenceClassification(config).eval()


@pytest.fixture
def batch():
    torch.manual_seed(1)
    return {
        "input_ids": torch.randint(0, 60, (4, 9)),
        "attention_mask": torch.ones(4, 9, dtype=torch.long),
        "labels": torch.tensor([0, 1, 0, 1]),
    }


def step(model, batch, optimizer):
    optimizer.zero_grad()
    loss = model(**batch)["loss"]
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")  # see tests/nn
@pytest.mark.parametrize("cls", CHOICES[1:], ids=lambda cls: cls.__name__)
@pytest.mark.long
def test_every_class_trains_in_place_of_every_linear(bert, batch, cls):
    model = replaced(bert, lambda name: cls).train()
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert len(layers) == 14 and {type(layer) for layer in layers} == {cls}
    assert model.state_dict().keys() == bert.state_dict().keys()
    assert all(layer.spec.weight.name == cls.format.name for layer in layers)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    # weights of +-1 without a scale answer a sign that flips with a jump of the loss
    rate = 3e-4 if cls.__name__ == "LinearBinary" else 1e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = [step(model, batch, optimizer) for _ in range(40)]
    gradients = [parameter.grad for layer in layers for parameter in layer.parameters()]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert sum(bool(gradient.any()) for gradient in gradients) > len(gradients) / 2
    assert min(losses[-5:]) < losses[0] / 2


# Where no test before has trained them, classes say once which keys they do not read.
@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_a_search_over_classes_and_widths(bert, batch):
    expected = bert(**batch)["logits"]

    def objective(trial):
        index = {}

        def choose(name):
            index[name] = trial.suggest_int(f"{name}_type", 0, len(CHOICES) - 1)
            return CHOICES[index[name]]

        width = trial.suggest_categorical("width", [8, 16, 32])
        frac_width = trial.suggest_categorical("frac_width", [2, 4, 8])
        block_size = trial.suggest_categorical("block_size", [16, 32])
        sizes = {"width": width, "frac_width": frac_width, "block_size": block_size}
        model = replaced(bert, choose, **sizes)
        layers = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        assert {n: type(m) for n, m in layers.items()} == {n: CHOICES[i] for n, i in index.items()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        assert torch.tensor(step(model, batch, optimizer)).isfinite()
        logits = model(**batch)["logits"]
        return (logits - expected).square().mean().item()

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=8)
    assert len(study.trials) == 8 and study.best_value < 1
    assert torch.equal(bert(**batch)["logits"], expected)


@pytest.mark.parametrize("widths", [(4, 2), (8, 4), (16, 12)])
def test_wide_integers_lose_nothing(bert, batch, widths):
    width, frac_width = widths
    model = replaced(bert, lambda name: LinearInteger, width=width, frac_width=frac_width)
    difference = (model(**batch)["logits"] - bert(**batch)["logits"]).abs().max()
    assert difference < {4: 2.0, 8: 0.2, 16: 1e-3}[width]
    assert torch.equal(model.classifier.weight, bert.classifier.weight)
