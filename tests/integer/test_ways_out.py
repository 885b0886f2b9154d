"""What has no integer form is refused with the way out that fits it."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError

EIGHT = {"by": "type", "default": {"config": {"name": "integer", "width": 8, "frac_width": 5}}}


def lowered(model, dummy_in):
    mg = MaseGraph(model.eval(), dummy_in=dummy_in)
    small, _ = passes.quantize_transform_pass(mg, EIGHT)
    return passes.lower_to_integer_transform_pass(small, {"batches": [dummy_in]})[0]


@pytest.mark.parametrize(
    "layers, x",
    [
        ((nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4)), torch.ones(3, 4)),
        ((nn.Conv2d(1, 2, 3), nn.ReLU(), nn.BatchNorm2d(2)), torch.ones(2, 1, 5, 5)),
        ((nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.ones(3, 4)),
    ],
)
def test_batch_norms_name_the_pass_that_folds_them(layers, x):
    with pytest.raises(ConfigError, match="conv_bn_fusion_transform_pass, before they are quant"):
        lowered(nn.Sequential(*layers), {"input": x})


class Drops(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, training=True)


class Nested(nn.Module):
    def __init__(self, take):
        super().__init__()
        self.fc, self.take = nn.Linear(4, 2), take

    def forward(self, x):
        return self.fc(self.take(x))


def test_dropout_that_is_always_active_names_its_argument():
    with pytest.raises(ConfigError, match="call dropout with training=self.training"):
        lowered(nn.Sequential(Drops(4, 2)), {"input": torch.ones(3, 4)})


@pytest.mark.parametrize(
    "take, make",
    [
        (lambda x: x["a"] + x["b"], lambda t: {"a": t, "b": t}),
        (lambda x: x[0] + x[1], lambda t: [t, t]),
        (lambda x: x[0] - x[1][0], lambda t: (t, (t,))),
    ],
)
def test_nested_inputs_are_refused_by_name(take, make):
    with pytest.raises(ConfigError, match="'x' has several of them; give forward an argument"):
        lowered(Nested(take), {"x": make(torch.ones(3, 4))})


class Softmax(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc, self.dim = nn.Linear(4, 4), dim

    def forward(self, x):
        return nn.functional.softmax(self.fc(x), self.dim)


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize("dim", [0, 1, -1, None])
@pytest.mark.sampled(3)
def test_softmax_along_any_dimension_is_that_of_torch(dim):
    x = torch.randn(3, 4)
    mg = MaseGraph(Softmax(dim).eval(), dummy_in={"x": x})
    small, _ = passes.quantize_transform_pass(mg, EIGHT)
    integers, _ = passes.lower_to_integer_transform_pass(small, {"batches": [{"x": x}]})
    torch.testing.assert_close(integers.model(x), small.model(x), atol=2**-5 + 1e-3, rtol=0)
    if dim == 0:
        with pytest.raises(ConfigError, match="softmax over the samples of a batch"):
            passes.emit_verilog_top_transform_pass(integers, {})
