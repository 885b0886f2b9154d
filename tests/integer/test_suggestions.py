"""What has no integer form is refused with the way out that fits it."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import CheckpointError, ConfigError, GuardError
from chop.hardware.design.emit import emit

EIGHT = {"by": "type", "default": {"config": {"name": "integer", "width": 8, "frac_width": 5}}}


def lowered(model, dummy_in):
    mg = MaseGraph(model.eval(), dummy_in=dummy_in)
    small, _ = passes.quantize_transform_pass(mg, EIGHT)
    return passes.lower_to_integer_transform_pass(small, {"batches": [dummy_in]})[0]


class Called(nn.BatchNorm1d):
    """A norm that is captured as a function call."""

    def forward(self, x):
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias
        )


def test_a_batch_norm_called_as_a_function_names_the_module():
    with pytest.raises(ConfigError, match="write a batch norm as nn.BatchNorm1d"):
        lowered(nn.Sequential(nn.Linear(4, 4), Called(4)), {"input": torch.ones(3, 4)})


class Body(nn.Module):
    """A linear layer, and what follows it."""

    def __init__(self, then):
        super().__init__()
        self.fc, self.then = nn.Linear(6, 4), then
        self.last = nn.Linear(4, 2)
        self.register_buffer("part", torch.tensor(0.5))
        self.register_buffer("scale", torch.rand(4))
        self.register_buffer("shift", torch.rand(4))
        self.slope = nn.Parameter(torch.rand(4))
        self.matrix = nn.Parameter(torch.rand(4, 4))
        self.prelu = nn.PReLU()
        self.lstm, self.gru = nn.LSTM(4, 4, batch_first=True), nn.GRU(4, 4, batch_first=True)
        self.instances, self.groups = nn.InstanceNorm2d(2), nn.GroupNorm(2, 2)

    def forward(self, x):
        return self.last(self.then(self, self.fc(x)))


def written(h):
    h = h * 1.0
    h[:, 0] = 0
    return h


WAYS = {
    "product with a buffer of their reciprocals": (lambda m, h: h / 2, lambda m, h: h * m.part),
    "x [*] x [*] x": (lambda m, h: h**3, lambda m, h: h * h * h),
    "x.amax.dim": (lambda m, h: h - h.max(-1, True)[0], lambda m, h: h - h.amax(-1, True)),
    "torch.cat of slices": (
        lambda m, h: nn.functional.pad(h[:, None], (1, 0), "replicate")[:, 0, :4],
        lambda m, h: torch.cat((h[:, :1], h), 1)[:, :4],
    ),
    "F.hardtanh.x, low, high": (
        lambda m, h: h.clamp(-0.5, 1),
        lambda m, h: nn.functional.hardtanh(h, -0.5, 1.0),
    ),
    "use nn.PReLU": (
        lambda m, h: nn.functional.prelu(h, m.slope),
        lambda m, h: m.prelu(h),
    ),
    "choice by sign as relu, nn.PReLU": (
        lambda m, h: torch.where(h > 0, h, h * 0.1),
        lambda m, h: m.prelu(h),
    ),
    "put the parameters into a module, such as nn.Linear": (
        lambda m, h: nn.functional.linear(h, m.matrix),
        lambda m, h: m.last(h)[:, :1] * h,
    ),
    "write the product as x @ matrix": (
        lambda m, h: torch.mm(h, m.matrix),
        lambda m, h: h @ m.matrix,
    ),
    "torch.cat instead of writing": (
        lambda m, h: written(h),
        lambda m, h: torch.cat((h[:, 1:], h[:, :1]), 1),
    ),
    "nn.GroupNorm.channels, channels": (
        lambda m, h: m.instances(h.view(-1, 2, 2, 1)).flatten(1),
        lambda m, h: m.groups(h.view(-1, 2, 2, 1)).flatten(1),
    ),
}


def body(then):
    return Body(then).eval()


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.*stay float")
@pytest.mark.parametrize("way", WAYS)
def test_a_rewrite_that_a_refusal_names_is_lowered_and_has_a_circuit(way):
    refused, rewritten = WAYS[way]
    x = torch.randn(5, 6)
    with pytest.raises(ConfigError, match=way):
        lowered(body(refused), {"x": x})
    integer = lowered(body(rewritten), {"x": x})
    assert emit(integer).interval >= 1


def test_rewrites_compute_what_they_replace():
    h = torch.randn(7, 4)
    model = body(None)
    for refused, rewritten in (
        WAYS[way] for way in ("x [*] x [*] x", "torch.cat of slices", "F.hardtanh.x, low, high")
    ):
        torch.testing.assert_close(rewritten(model, h), refused(model, h))


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*stay float")
@pytest.mark.parametrize(
    "refused, way",
    [
        (lambda m, h: h.exp(), "under 'Components' in docs/guide/circuit-operators.md"),
        (lambda m, h: m.lstm(h[None])[0][0], "write the gates as linear layers"),
        (lambda m, h: m.gru(h[None])[0][0], "write the gates as linear layers"),
        (lambda m, h: h.sort(-1)[0], "return the scores, and sort them in the program"),
        (lambda m, h: nn.functional.log_softmax(h, -1), "return the scores, and log_softmax them"),
    ],
)
def test_other_operators_name_no_key_of_the_settings(refused, way):
    with pytest.raises(ConfigError) as error:
        lowered(body(refused), {"x": torch.randn(5, 6)})
    assert way in str(error.value)
    assert "missing" not in str(error.value) and "choose integer" not in str(error.value)


class Branches(nn.Linear):
    def forward(self, x):
        h = super().forward(x)
        return h * h if h.sum() > 0 else h


class Activated(nn.Module):
    """An activation behind what `first` computes, and a layer that reads it."""

    def __init__(self, activation, first):
        super().__init__()
        self.fc, self.last = nn.Linear(64, 64), nn.Linear(64, 2)
        with torch.no_grad():
            self.fc.weight.mul_(8)  # more than 2^16 sums
        self.activation, self.first = activation, first
        self.register_buffer("zeros", torch.zeros(64))

    def forward(self, x):
        return self.last(self.activation(self.first(self, x)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "first", [lambda m, x: x, lambda m, x: m.fc(x), lambda m, x: torch.tanh(x)]
)
@pytest.mark.parametrize(
    "activation", [nn.LeakyReLU(0.25), nn.Hardtanh(0.0, 0.5), nn.ReLU6(), nn.ELU()]
)
def test_an_activation_without_a_format_reads_a_sum_with_zeros(activation, first):
    torch.manual_seed(0)
    x = torch.rand(5, 64)
    with pytest.raises(ConfigError, match="has no format, .* add a buffer of zeros to its input"):
        lowered(Activated(activation, first), {"x": x})
    integer = lowered(Activated(activation, lambda m, x: first(m, x) + m.zeros), {"x": x})
    assert emit(integer).interval >= 1


@pytest.mark.filterwarnings("ignore:capture of Branches")
def test_a_branch_that_rows_change_is_one_sentence():
    x = torch.randn(3, 4)
    mg = MaseGraph(Branches(4, 2, bias=False).eval(), dummy_in={"x": x})
    auto = {
        "by": "type",
        "default": {"config": {"name": "integer", "width": 8, "frac_width": "auto"}},
    }
    small, _ = passes.quantize_transform_pass(mg, auto)
    with pytest.raises(GuardError, match="write the branch as torch.where") as error:
        passes.calibrate_transform_pass(small, {"batches": [{"x": x}, {"x": -x}]})
    assert "While executing" not in str(error.value)


class Nested(nn.Module):
    def __init__(self, take):
        super().__init__()
        self.fc, self.take = nn.Linear(4, 2), take

    def forward(self, x):
        return self.fc(self.take(x))


@pytest.mark.parametrize("given", [{}, {"training": True}])
def test_dropout_that_is_always_active_names_its_argument(given):
    match = r"\(dropout with training=True\).* call dropout with training=self.training"
    with pytest.raises(ConfigError, match=match):
        lowered(body(lambda m, h: nn.functional.dropout(h, 0.5, **given)), {"x": torch.ones(3, 6)})


@pytest.mark.parametrize(
    "take, make",
    [
        (lambda x: x["a"] + x["b"], lambda t: {"a": t, "b": t}),
        (lambda x: x[0] + x[1], lambda t: [t, t]),
        (lambda x: x[0] - x[1][0], lambda t: (t, (t,))),
    ],
)
def test_nested_inputs_are_refused_by_name(take, make):
    with pytest.raises(ConfigError, match="'x' has several of them; add an argument of forward"):
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
        with pytest.raises(ConfigError, match="softmax over the batch dimension"):
            passes.emit_verilog_top_transform_pass(integers, {})


def test_a_graph_of_integers_is_not_lowered_again():
    x = {"input": torch.randn(3, 4)}
    integers = lowered(nn.Sequential(nn.Linear(4, 2)), x)
    with pytest.raises(ConfigError, match="is an integer graph already"):
        passes.lower_to_integer_transform_pass(integers, {"batches": [x]})


def test_inputs_that_are_no_numbers_have_no_golden_values(tmp_path):
    integers = lowered(nn.Sequential(nn.Linear(4, 2)), {"input": torch.randn(3, 4)})
    settings = {"project_dir": tmp_path, "batches": [{"input": torch.full((2, 4), torch.nan)}]}
    with pytest.raises(ConfigError, match="input 'input' has NaN"):
        passes.emit_cocotb_transform_pass(integers, settings)
    settings["batches"] = [{"input": torch.full((2, 4), torch.inf)}]
    with pytest.warns(UserWarning, match="100% of the numbers .* far outside of the range"):
        _, info = passes.emit_cocotb_transform_pass(integers, settings)
    assert info["samples"] == 2


def test_a_folder_of_another_model_is_not_simulated(tmp_path):
    x = {"input": torch.randn(3, 4)}
    first, other = (lowered(nn.Sequential(nn.Linear(4, 2)), x) for _ in range(2))
    passes.emit_cocotb_transform_pass(first, {"project_dir": tmp_path, "fold": 4})
    with pytest.raises(CheckpointError, match="has the circuit of another graph"):
        passes.run_cosim_analysis_pass(other, {"project_dir": tmp_path})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["module", "reg", "testbench", "a b", "chop_x"])
def test_a_top_module_has_no_name_that_is_taken(name, tmp_path):
    integers = lowered(nn.Sequential(nn.Linear(4, 2)), {"input": torch.randn(3, 4)})
    with pytest.raises(ConfigError, match="top_name: "):
        passes.emit_verilog_top_transform_pass(
            integers, {"project_dir": tmp_path, "top_name": name}
        )
