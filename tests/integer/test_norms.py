"""Batch norms in integer graphs: maps of the accumulator, and thresholds for few codes."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.nn.integer import (
    ChannelMap,
    Edge,
    Grid,
    IntegerBatchNorm,
    IntegerThresholds,
    Requantize,
)

GRIDS = [
    Grid(0.5, -8, 7),
    Grid(0.5, -8, 7, "floor"),
    Grid(0.3, 0, 3),
    Grid(1.0, -1, 1, "sign"),
    Grid(1.0, -1, 1, "threshold", 0.7),
    Grid(1.0, 0, 0),
]


def channels(size, dims, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (size, *[1] * dims)
    factors, shifts = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    factors[0] = 0.0
    return ChannelMap(factors * 0.03, shifts)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("dims", [0, 1, 2])
def test_thresholds_give_the_rounded_result_of_every_code(grid, dims):
    edge, given = Edge.of(0.25, -300, 211), channels(7, dims)
    codes = torch.arange(edge.low, edge.high + 1)
    x = codes.view(-1, *[1] * (1 + dims)).expand(-1, 7, *[1] * dims)
    operator = IntegerThresholds(edge, given, grid)
    y = operator(x)
    assert torch.equal(y, grid.codes(x.double() * given.factors + given.shifts))
    assert (operator.out_low, operator.out_high) == (int(y.min()), int(y.max()))


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_norm_is_within_the_rounding_of_its_factors(seed):
    edge, given = Edge.of(0.25, -300, 211), channels(5, 0, seed)
    x = torch.arange(edge.low, edge.high + 1).view(-1, 1).expand(-1, 5)
    operator = IntegerBatchNorm(edge, given)
    exact = x.double() * given.factors + given.shifts
    step = operator.out.scalar_step
    # Half a unit of the factor for each unit of the code, and half a unit of the shift.
    error = (operator.out.decode(operator(x)) - exact).abs()
    assert bool((error <= step * (x.abs() + 1) / 2).all())
    assert step * 2**17 <= 2 * float(given.factors.abs().max())
    y = operator(x)
    assert (operator.out_low, operator.out_high) == (int(y.min()), int(y.max()))


def test_norms_without_a_slope_are_constants():
    edge = Edge.of(1.0, -9, 9)
    constant = ChannelMap(torch.zeros(2).double(), torch.tensor([0.75, -0.5]).double())
    operator = IntegerBatchNorm(edge, constant)
    x = torch.tensor([[-9, 9], [4, 0]])
    assert torch.equal(operator.out.decode(operator(x)), constant.shifts.expand(2, 2))
    nothing = IntegerBatchNorm(edge, ChannelMap(*torch.zeros(2, 2).double()))
    assert not nothing(x).any() and nothing.out.bits == 1


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-12, 1e-5])
def test_factors_far_below_the_shifts_need_no_wide_codes(factor):
    edge = Edge.of(1.0, -(2**15), 2**15)
    factors, shifts = torch.tensor([[factor, -factor], [0.8, -0.3]]).double()
    operator = IntegerBatchNorm(edge, ChannelMap(factors, shifts))
    x = torch.tensor([[9, -(2**15)]])
    error = operator.out.decode(operator(x)) - (x * factors + shifts)
    bound = 2**16 * max(factor * 2**-17, 2**-40)  # half a step of a factor for each unit of x
    assert operator.out.bits <= 43 and float(error.abs().max()) <= bound


def trained(model):
    """With statistics and parameters of batch norms that no initialization has."""
    generator = torch.Generator().manual_seed(3)
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            for values, scale, offset in (
                (norm.running_mean, 0.5, 0.0),
                (norm.running_var, 0.3, 1.0),
                (norm.weight.data, 1.0, 0.2),
                (norm.bias.data, 0.5, 0.1),
            ):
                values.copy_(torch.randn(values.shape, generator=generator) * scale + offset)
            norm.running_var.abs_().add_(0.1)
    return model.eval()


def integer(model, x, width=4, weight="integer", **formats):
    """The quantized graph, its integer graph and the rows of its operators."""
    torch.manual_seed(0)
    config = {"name": "integer", "width": 8, "frac_width": 5}
    config["data_in"] = {"name": "integer", "width": width, "frac_width": width - 3}
    if weight != "integer":
        config["weight"] = {"name": weight}
    mg = MaseGraph(model, dummy_in={"input": x})
    kinds = {mg.operator(node).name for node in mg.nodes} & {"linear", "conv1d", "conv2d"}
    rules = {"by": "type", **{kind: {"config": config} for kind in kinds}}
    rules |= {name: {"config": given} for name, given in formats.items()}
    small, _ = passes.quantize_transform_pass(mg, rules)
    lowered, info = passes.lower_to_integer_transform_pass(small, {"batches": [{"input": x}]})
    return small, lowered, info["operators"]


def images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


NETS = {
    "linear": (
        lambda: (nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)),
        images(50, 20),
    ),
    "after relu": (
        lambda: (nn.Linear(20, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4)),
        images(50, 20),
    ),
    "conv": (
        lambda: (nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3)),
        images(9, 2, 8, 8),
    ),
    "pool": (
        lambda: (
            *(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3)),
        ),
        images(9, 2, 8, 8),
    ),
    "sequence": (
        lambda: (nn.Conv1d(2, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 3, 3)),
        images(9, 2, 12),
    ),
}


@pytest.mark.parametrize("weight", ["integer", "binary", "ternary"])
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.sampled(2)
def test_trained_norms_are_lowered_as_they_are(name, width, weight):
    layers, x = NETS[name]
    model = trained(nn.Sequential(*layers()))
    small, lowered, rows = integer(model, x, width, weight)
    kinds = [type(module) for module in lowered.model.modules()]
    has_thresholds = width <= 4
    assert (IntegerThresholds in kinds) == has_thresholds
    assert (Requantize in kinds) != has_thresholds
    codes = sum(row["codes"] for row in rows)
    different = sum(row["different"] for row in rows)
    # Ties of the float32 reference, or of 17 bits of a factor: one step, in few codes.
    assert max(row["largest"] for row in rows) <= 1 and different <= codes * 1e-3
    with torch.no_grad():
        assert (lowered.model(x) - small.model(x)).abs().max() <= (0 if not different else 1)


def test_binary_inputs_are_the_signs_of_norms():
    model = trained(nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)))
    binary = {"name": "integer", "width": 8, "frac_width": 5, "data_in": {"name": "binary"}}
    _, lowered, rows = integer(model, images(60, 20), linear=binary)
    assert sum(row["different"] for row in rows) == 0
    thresholds = next(m for m in lowered.model.modules() if isinstance(m, IntegerThresholds))
    assert (len(thresholds.thresholds), thresholds.low, thresholds.stride) == (1, -1, 2)


def test_a_quantized_norm_rounds_its_input_and_parameters():
    norm = {"name": "integer", "width": 8, "frac_width": 5}
    model = trained(nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)))
    _, lowered, rows = integer(model, images(60, 20), 8, batch_norm1d=norm)
    kinds = [type(module) for module in lowered.model.modules()]
    # One requantizer ahead of the norm, one behind it.
    assert IntegerBatchNorm in kinds and kinds.count(Requantize) == 2
    assert max(row["largest"] for row in rows) <= 1


def test_norms_with_statistics_of_the_batch_are_refused():
    norm = nn.BatchNorm1d(16, track_running_stats=False)
    model = nn.Sequential(nn.Linear(20, 16), norm, nn.Linear(16, 4)).eval()
    with pytest.raises(ConfigError, match="node '_1': BatchNorm: expected running statistics"):
        integer(model, images(5, 20))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -1.0])
def test_norms_without_finite_numbers_are_refused(broken, width):
    norm = nn.BatchNorm1d(16)
    (norm.running_var if broken < 0 else norm.running_mean)[3] = broken
    model = nn.Sequential(nn.Linear(20, 16), norm, nn.Linear(16, 4)).eval()
    with pytest.raises(ConfigError, match="node '_1': BatchNorm: expected finite statistics"):
        integer(model, images(5, 20), width)


class Joined(nn.Module):
    """Layers whose joined results a norm reads."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, input):
        return self.last(self.norm(torch.cat([self.first(input), self.second(input)], 1)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [4, 8])
def test_norms_of_joined_values_need_a_format(width):
    model, x = trained(Joined()), images(9, 6)
    message = "node 'cat': it joins .* quantize 'norm' .batch_norm1d. with a format for data_in"
    with pytest.raises(ConfigError, match=message):
        integer(model, x, width)
    norm = {"name": "integer", "width": 8, "frac_width": 5}
    small, lowered, _ = integer(model, x, width, batch_norm1d=norm)
    assert torch.equal(lowered.model(x), small.model(x))


class Shared(nn.Module):
    """A norm that two layers use, and results that readers with two formats read."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, input):
        x = self.norm(self.first(input))
        return self.third(self.norm(self.second(x))) + self.third(x.relu())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [2, 4, 8])
def test_a_norm_of_several_layers_and_readers(width):
    model, x = trained(Shared()), images(9, 6)
    small, lowered, _ = integer(
        model, x, width, add={"name": "integer", "width": 8, "frac_width": 4}
    )
    kinds = [type(module) for module in lowered.model.modules()]
    assert kinds.count(IntegerThresholds) == 3 * (width <= 4)
    assert torch.equal(lowered.model(x), small.model(x))
