"""`where` and `masked_fill`, quantized: what they fill in is not rounded, and is in no scale."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, MXInt
from chop.ir.ops import quantizable_operators
from chop.nn.quantized import QuantCall
from tests.nn.test_masked_scores import WITHIN_A_TOKEN
from tests.quantization.causality import LOWEST, inputs, is_causal
from tests.quantization.test_masks_ahead import SCORES, Attention, later
from tests.subcases import subcases

SIZE = 8
FORMAT = MXInt(4, block_size=SIZE)
HIDDEN = later(SIZE)


def filled(x, fill, name="masked_fill"):
    return getattr(x, name)(later(x.size(-1)), fill)


SELECTIONS = {
    "masked_fill": lambda x: filled(x, -math.inf),
    "in place": lambda x: filled(x * 1, -math.inf, "masked_fill_"),
    "function": lambda x: torch.masked_fill(x, later(x.size(-1)), torch.tensor(-1e9)),
    "by name": lambda x: x.masked_fill(mask=later(x.size(-1)), value=LOWEST),
    "where": lambda x: torch.where(later(x.size(-1)), -1e9, x),
    "where of a tensor": lambda x: torch.where(~later(x.size(-1)), x, torch.tensor(-1e9)),
    "where by name": lambda x: torch.where(
        condition=later(x.size(-1)), input=torch.full((1, 1), -1e9), other=x
    ),
    "method": lambda x: x.where(~later(x.size(-1)), torch.full((1,), LOWEST)),
    "method by name": lambda x: x.where(condition=~later(x.size(-1)), other=torch.tensor(-1e9)),
    "an ordinary number": lambda x: filled(x, 0.3),
    "where of a number": lambda x: torch.where(later(x.size(-1)), torch.tensor(0.3), x),
}


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, a, b=None, c=None):
        return self.function(a) if b is None else self.function(a, b, c)


def graph(function, *args):
    return MaseGraph(Calls(function).eval(), dummy_in=dict(zip("abc", args, strict=False)))


def quantized(mg, rules):
    return passes.quantize_transform_pass(mg, rules)[0].model


def calls(model):
    return [part for part in model.modules() if isinstance(part, QuantCall)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SELECTIONS)
def test_selections_round_what_they_select(name):
    x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    mg = graph(lambda a: SELECTIONS[name](a), x)
    node = next(n for n in mg.nodes if mg.operator(n).selector)
    rounded = [FORMAT.round(x[i].masked_fill(HIDDEN[i], 0)) for i in range(SIZE)]
    expected = torch.where(HIDDEN, SELECTIONS[name](x), FORMAT.round(torch.stack(rounded)))
    keys = {"type": mg.operator(node).name, "name": node.name, "regex_name": f"{node.name}.*"}
    for by, key in keys.items():
        config = {"config": {"data_in": FORMAT, "data_out": FORMAT}}
        model = quantized(mg.copy(), {"by": by, key: config})
        for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)).train()):
            assert len(calls(twin)) == 1
            assert torch.equal(twin(x), expected)


def test_where_of_two_tensors_rounds_both():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    mg = graph(lambda a, b, c: torch.where(c, a, b), a, b, HIDDEN)
    rule = {"config": {"data_in": FORMAT, "data_out": FORMAT}}
    model = quantized(mg, {"by": "type", "where": rule})
    chosen = torch.where(HIDDEN, FORMAT.round(a), FORMAT.round(b))
    assert torch.equal(model(a, b, HIDDEN), FORMAT.round(chosen))
    a = a.masked_fill(HIDDEN.mT, LOWEST)  # numbers that mask are in no scale, taken or not
    found = model(a, b, HIDDEN)
    visible = [FORMAT.round(a[i].masked_fill(HIDDEN.mT[i], 0)) for i in range(SIZE)]
    expected = FORMAT.round(torch.where(HIDDEN, torch.stack(visible), FORMAT.round(b)))
    assert torch.equal(found, expected)


def test_rules_of_all_operators_leave_selections():
    """Recipes mean what they meant; a pattern quantizes selections where it means these alone."""
    x = torch.randn(SIZE, SIZE)
    config = {"config": {"data_in": FORMAT}}
    rules = [
        {"by": "type", "default": {"config": {"name": "mxint", "data_in_width": 4}}},
        {"by": "type", "relu": config},
        {"by": "regex_name", ".*": config},
        {"by": "name", "re:.*": config},
    ]
    for rule in rules:
        mg = graph(lambda a: torch.relu(a).masked_fill(later(SIZE), 0.0), x)
        (call,) = calls(quantized(mg, rule))
        assert call.function is torch.relu
    assert not {"where", "masked_fill"} & set(quantizable_operators())
    with pytest.raises(ConfigError, match="no quantizable operator"):
        quantized(graph(torch.relu, x), {"by": "type", "where": config})


def test_integer_graphs_refuse_them_by_name():
    x = torch.randn(4, SIZE)
    mg = graph(lambda a: torch.relu(a).masked_fill(later(SIZE)[:4], 0.0), x)
    rule = {"config": {"data_in": Integer(8, 4), "data_out": Integer(8, 4)}}
    mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "relu": rule, "masked_fill": rule})
    with pytest.raises(ConfigError, match="masked_fill") as refusal:
        passes.lower_to_integer_transform_pass(mg, {"batches": [{"a": x}]})
    assert "\n" not in str(refusal.value).strip()


@pytest.fixture(scope="module", params=["masked_fill_", "method"])
def attention(request):
    """A model whose selection alone is quantized."""
    mg = MaseGraph(Attention(SCORES[request.param]).eval(), dummy_in={"x": inputs()[0]})
    found = {mg.operator(n).name for n in mg.nodes if mg.operator(n).selector}
    config = {"config": {"data_in": MXInt(4), "data_out": MXInt(4)}}
    return quantized(mg, {"by": "type", **dict.fromkeys(found, config)})


@pytest.mark.sampled(1)
@subcases("fmt", WITHIN_A_TOKEN, ids=lambda fmt: fmt.label)
def test_every_format_is_causal(fmt, attention):
    (call,) = calls(attention)
    call.spec = call.spec.with_quantizers(data_in=fmt, data_out=fmt)
    x, changed = inputs()
    for mode in (True, False):
        is_causal(attention.train(mode), x, changed)
    x.requires_grad_()
    attention(x)[:, :-1].sum().backward()
    assert not x.grad[:, -1].any()


@pytest.mark.parametrize("settings", ["auto", "lsq"])
def test_ranges_and_starts_are_those_of_what_is_selected(settings):
    x = torch.randn(2, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    mg = graph(lambda a: a.masked_fill(later(SIZE), -math.inf), x)
    auto = {"name": "integer", "width": 8, "frac_width": "auto"}
    lsq = {"name": "scale_integer", "width": 8}
    config = {"data_in": auto} if settings == "auto" else {"data_in": lsq, "gradient": "lsq"}
    model = quantized(mg, {"by": "type", "masked_fill": {"config": config}}).train()
    wild = torch.where(HIDDEN, 1e3 * x, x)
    found = [copy.deepcopy(model) for _ in range(2)]
    for twin, given in zip(found, (x, wild), strict=True):
        twin(given.requires_grad_())[..., ~HIDDEN].sum().backward()
    state, other = (twin.state_dict() for twin in found)
    learned = [key for key in state if key.endswith(("_range", "_scale"))]
    assert learned and all(torch.equal(state[key], other[key]) for key in learned)
    assert state[learned[0]].flatten()[0] > 0


@pytest.mark.filterwarnings("ignore::chop.base.notices.AdjustedWarning")
def test_long_chains_of_operators_end():
    """Loops of hundreds of operators end, and take no time that grows with branches."""

    def loop(a):
        hidden = later(SIZE)
        a = a @ a.mT
        for _ in range(40):
            a = a.masked_fill(hidden, -1e9) * 0.5 + a.masked_fill(hidden.mT, 1.0)
        for _ in range(300):
            a = a + 1.0
        return a.softmax(-1)

    mg = graph(loop, torch.randn(SIZE, SIZE))
    config = {"config": {"data_in": FORMAT}}
    model = quantized(mg, {"by": "type", "add": config})
    assert len(calls(model)) == 340
