"""Training with learned scales, and evaluation with cached weights."""

import copy
from unittest import mock

import pytest

from chop.data import load_dataset
from chop.formats import QuantSpec, ScaleInteger
from chop.models import load_model
from chop.nn.quantized import QuantizedOperator
from chop.passes.module import quantize_module_transform_pass
from chop.train import evaluate, get_trainer, read_rows
from chop.train.train_loop import _parameter_groups

INT3 = QuantSpec(ScaleInteger(3), ScaleInteger(3), gradient="lsq")


@pytest.fixture(scope="module")
def digits():
    return {name: read_rows(split) for name, split in load_dataset("digits").items()}


def quantized(model, spec):
    rules = {"by": "type", "linear": {"config": spec}}
    return quantize_module_transform_pass(copy.deepcopy(model), rules)[0]


def test_no_weight_decay_touches_scales(digits):
    model = quantized(load_model("mlp"), INT3)
    scales = {id(p) for name, p in model.named_parameters() if name.endswith("_scale")}
    decayed, spared = _parameter_groups(list(model.parameters()), 0.1)
    assert decayed["weight_decay"] == 0.1 and spared["weight_decay"] == 0.0
    assert not scales & {id(p) for p in decayed["params"]}
    assert scales <= {id(p) for p in spared["params"]}
    trainer = get_trainer(model, load_dataset("digits"), weight_decay=0.1, disable_tqdm=True)
    names = trainer.get_decay_parameter_names(model)
    assert "fc1.weight" in names and not any(name.endswith("_scale") for name in names)


@pytest.mark.parametrize("way", ["lean", "trainer"])
def test_evaluation_rounds_each_weight_once(digits, way):
    model = quantized(load_model("mlp"), INT3)
    whole, rounded = QuantizedOperator._round, []

    def count(self, operand, x, mask):
        rounded.append(operand)
        return whole(self, operand, x, mask)

    with mock.patch.object(QuantizedOperator, "_round", count):
        if way == "lean":
            evaluate(model, digits, batch_size=60)
        else:
            get_trainer(
                model, load_dataset("digits"), eval_batch_size=60, disable_tqdm=True
            ).evaluate()
    assert rounded.count("weight") == 3 and rounded.count("data_in") > 6
