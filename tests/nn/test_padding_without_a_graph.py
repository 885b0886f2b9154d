"""Padding in training of modules without a graph: they learn of visible tokens, as graphs do."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import chop
from chop import MaseGraph, passes
from chop.captured import followed_calls
from chop.captured.padding import hidden
from chop.passes.module import quantize_module_transform_pass
from chop.private.torch_api import is_dispatch_observed
from tests.nn.test_padding_in_training import (
    AUTO,
    MODELS,
    SETTINGS,
    Encoder,
    assert_equal_for_all_padding,
    batch_of,
    bert,
)


class Holder:
    def __init__(self, model):
        self.model = model.train()


def quantized(name, settings="auto"):
    torch.manual_seed(0)
    rules = {"by": "type", "linear": SETTINGS[settings]}
    return quantize_module_transform_pass(MODELS[name](), rules)[0]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(2)
def test_modules_learn_of_visible_tokens(name, settings):
    model = quantized(name, settings)
    expected = assert_equal_for_all_padding(Holder(model), name)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        state = assert_equal_for_all_padding(Holder(twin), name)
        assert all(torch.equal(x, expected[key]) for key, x in state.items())


@pytest.mark.long
def test_modules_of_graphs_learn_what_graphs_learn():
    torch.manual_seed(0)
    mg = MaseGraph(Encoder(), dummy_in=batch_of("encoder", 1)[0])
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": AUTO})
    model = Holder(mg.to_module())
    found = assert_equal_for_all_padding(model, "encoder")
    assert found.keys() == assert_equal_for_all_padding(Holder(mg.model), "encoder").keys()
    batch, _ = batch_of("encoder", 1)
    model.model(**batch)
    mg.model.train()(**batch)
    state = mg.model.state_dict()
    assert all(torch.equal(model.model.state_dict()[key], state[key]) for key in found)
    assert_equal_for_all_padding(Holder(chop.quantize(bert(), "8.auto")), "bert")


def test_a_part_of_a_model_positions_and_checkpoints():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = quantized("encoder")

        def forward(self, ids, key_padding_mask):
            return self.inner(ids, key_padding_mask)

    expected = assert_equal_for_all_padding(Holder(Outer()), "encoder")
    model = Holder(Outer().inner)
    ways = (
        lambda model, batch: model(*batch.values()),
        lambda model, batch: checkpoint(model, *batch.values(), use_reentrant=False),
    )
    for call in ways:
        state = assert_equal_for_all_padding(model, "encoder", call=call)
        assert all(torch.equal(x, expected[f"inner.{key}"]) for key, x in state.items())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_calls_that_end_early_leave_nothing(error):
    """torch runs no hooks behind Ctrl-C: the next call leaves what that call has entered."""
    model = quantized("encoder")
    expected = assert_equal_for_all_padding(Holder(model), "encoder")

    def stop(*_):
        raise error

    handle = model.layers.register_forward_hook(stop)
    with pytest.raises(error):
        copy.deepcopy(model)(**batch_of("encoder", 1)[0])
    handle.remove()
    state = assert_equal_for_all_padding(Holder(model), "encoder")
    assert all(torch.equal(x, expected[key]) for key, x in state.items())
    assert not followed_calls._running.get() and hidden._followed.get() is None
    assert not is_dispatch_observed()


@pytest.mark.long
def test_only_models_that_can_learn_of_masked_inputs_have_hooks():
    def hooks(model):
        return [*model._forward_pre_hooks.values(), *model._forward_hooks.values()]

    fixed = {"config": {"data_in": {"name": "integer", "width": 8, "frac_width": 4}}}
    cases = [(Encoder(), fixed), (nn.Sequential(nn.Linear(4, 4)), AUTO)]
    for model, config in cases:
        rules = {"by": "type", "linear": config}
        assert not hooks(quantize_module_transform_pass(model, rules)[0])
    model = quantized("encoder")
    again, _ = quantize_module_transform_pass(model, {"by": "type", "layer_norm": AUTO})
    assert len(hooks(again)) == 2
    mg = MaseGraph(model, dummy_in=batch_of("encoder", 1)[0])
    assert not hooks(mg.model) and mg.model.record.eval_only is None
    assert_equal_for_all_padding(mg, "encoder")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, attention_mask):
        return self.layer(x) * attention_mask[..., None]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_graph", [False, True])
def test_compiled_training_names_what_is_fitted_to_padding(is_graph):
    """A compiled operator learns nothing: it has the range that it was compiled with, or none."""
    batch = {"x": torch.randn(2, 3, 4), "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}
    rules = {"by": "type", "linear": AUTO}
    model = quantize_module_transform_pass(Layer(), rules)[0]
    if is_graph:
        model = passes.quantize_transform_pass(MaseGraph(Layer(), dummy_in=batch), rules)[0].model
    model.train()
    trained = copy.deepcopy(model)
    trained(**batch)
    with pytest.warns(UserWarning, match="'layer' .* each whole tensor, including padding"):
        torch.compile(model, backend="eager")(**batch)
    torch.compile(trained, backend="eager")(**batch)
    torch.compile(model.eval(), backend="eager")(**batch)
