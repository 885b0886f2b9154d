"""Models whose layers read another order than the one before sends, and their integer graphs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.hardware.design.emit import emit
from tests.hardware.bench import check_graph, needs_tools

INTEGER = {"config": {"name": "integer", "width": 8, "frac_width": 5}}


class Between(nn.Module):
    """A layer, a function of its result, and a layer.

    Args:
        then: the function, of the module and the result.
        image: the layers are convolutions of images (3, 4, 4); else linear, of (3, 6) tokens.
        inputs: channels or features that the second layer reads.
    """

    def __init__(self, then, image, inputs=4):
        super().__init__()
        self.then = then
        self.first = nn.Conv2d(3, 4, 1) if image else nn.Linear(6, 4)
        self.last = nn.Conv2d(inputs, 2, 3, padding=1) if image else nn.Linear(inputs, 2)
        self.slopes, self.slope = nn.PReLU(4), nn.PReLU()
        self.groups, self.tokens = nn.GroupNorm(2, 4), nn.Linear(3, 3)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.unshuffle = nn.PixelUnshuffle(2)
        self.matrix, self.mixing = nn.Parameter(torch.rand(1, 4, 5)), nn.Parameter(torch.rand(3, 3))
        self.row, self.vector = nn.Parameter(torch.rand(1, 1, 4)), nn.Parameter(torch.rand(4))
        self.register_buffer("whole", torch.arange(4))
        self.register_buffer("wide", torch.rand(4).double())

    def forward(self, input):
        return self.last(self.then(self, self.first(input)))


IMAGES = {
    "height_and_width": (4, lambda m, x: x.transpose(2, 3)),
    "channels_as_rows": (4, lambda m, x: x.permute(0, 2, 1, 3)),
    "concatenation": (8, lambda m, x: torch.cat((x, x.relu()), 1)),
    "u_net": (8, lambda m, x: torch.cat((x, F.interpolate(F.max_pool2d(x, 2), scale_factor=2)), 1)),
    "squeeze_and_excite": (4, lambda m, x: x * torch.sigmoid(x.mean((2, 3), keepdim=True))),
    "expanded": (
        4,
        lambda m, x: torch.sigmoid(x.mean((2, 3)))[:, :, None, None].expand(-1, -1, 4, 4) * x,
    ),
    "centered": (4, lambda m, x: x - x.mean(1, keepdim=True)),
    "padded": (4, lambda m, x: F.pad(x, (1, 0, 0, 2))),
    "upsampled": (4, lambda m, x: F.interpolate(x, scale_factor=2)),
    "transposed_convolution": (4, lambda m, x: m.up(x)),
    "group_norm": (4, lambda m, x: m.groups(x)),
    "slopes": (4, lambda m, x: m.slopes(x)),
    "pixel_shuffle": (1, lambda m, x: F.pixel_shuffle(x, 2)),
    "pixel_unshuffle": (16, lambda m, x: m.unshuffle(x)),
    "channel_shuffle": (4, lambda m, x: F.channel_shuffle(x, 2)),
}
TOKENS = {
    "mixer": (4, lambda m, x: m.tokens(x.transpose(1, 2)).transpose(1, 2) + x),
    "keys_and_values": (4, lambda m, x: x @ (x.transpose(1, 2) @ x)),
    "centered": (4, lambda m, x: x - x.mean(1, keepdim=True)),
    "below_the_largest": (4, lambda m, x: x - x.amax(-1, keepdim=True)),
    "largest": (4, lambda m, x: x.amax(1)),
    "magnitude": (4, lambda m, x: x.abs()),
    "power": (4, lambda m, x: x**2),
    "square": (4, lambda m, x: x.square()),
    "slope": (4, lambda m, x: m.slope(x)),
    "padded": (6, lambda m, x: F.pad(x, (1, 1))),
    "whole_numbers": (4, lambda m, x: x + m.whole),
    "double": (4, lambda m, x: (x + m.wide).float()),
    "constant_matrix": (5, lambda m, x: x @ m.matrix),
    "constant_vector": (4, lambda m, x: (x @ m.vector)[..., None] * x),
    "matrix_of_tokens": (4, lambda m, x: m.mixing @ x),
    "constant_rows": (4, lambda m, x: torch.cat((*[m.row.expand(len(x), 1, 4)] * 2, x), 1)),
    "number_first": (4, lambda m, x: 1 - x * 0.3),
}
CASES = {
    **{f"image_{name}": (True, *case) for name, case in IMAGES.items()},
    **{f"tokens_{name}": (False, *case) for name, case in TOKENS.items()},
}
ROUNDED = {"image_group_norm": 0.25, "image_slopes": 2.0**-6, "tokens_slope": 2.0**-6}
"""Largest difference from the quantized model, where an operator is not exact."""


def integers(name):
    torch.manual_seed(0)
    is_image, inputs, then = CASES[name]
    model = Between(then, is_image, inputs).eval()
    batch = {"input": torch.randn(3, 3, 4, 4) if is_image else torch.randn(3, 3, 6)}
    mg = MaseGraph(model, dummy_in=batch)
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "default": INTEGER})
    integer, info = passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
    return quantized, integer, batch, info


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
def test_integers_are_those_of_the_quantized_model(name):
    quantized, integer, batch, info = integers(name)
    with torch.no_grad():
        found, expected = integer.model(**batch), quantized.model(**batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDED.get(name, 0))
    steps = [row for row in info["operators"] if row["kind"] not in ("group_norm", "prelu")]
    assert all(row["different"] == 0 for row in steps)
    assert all(row["largest"] <= 1 for row in info["operators"])
    assert emit(integer, fold=24).interval >= 16


@pytest.mark.parametrize("name", CASES)
@needs_tools
@pytest.mark.sampled(1)
def test_the_circuit_computes_the_integers(name, tmp_path):
    _, integer, batch, _ = integers(name)
    built = check_graph(integer, batch, 24, tmp_path)
    assert built.interval == pytest.approx(built.design.interval, rel=0.02)


@needs_tools
@pytest.mark.sampled(1)
def test_interleaved_means_leave_when_planned(tmp_path):
    """All means of a sample are complete at its end, not spread over the cycles of the sums."""
    _, integer, batch, _ = integers("tokens_centered")
    built = check_graph(integer, batch, 24, tmp_path)
    planned = built.design.connections.schedule.latency(built.design.netlist)
    assert abs(planned - built.latency) <= 0.05 * built.latency


def modules(name, fold=24):
    return [part.module for part in emit(integers(name)[1], fold=fold).netlist.instances]


def test_a_concatenation_of_channels_needs_no_memory():
    assert "chop_reorder" not in modules("image_concatenation")


@pytest.mark.parametrize("name", ["image_squeeze_and_excite", "image_expanded"])
def test_a_factor_of_each_channel_is_repeated_from_a_small_frame(name):
    """Not the expanded image is stored, and the circuit has no copies of it either."""
    netlist = emit(integers(name)[1], fold=24).netlist
    (reorder,) = (part for part in netlist.instances if part.module == "chop_reorder")
    assert reorder.plan.parameters["WORDS"] * reorder.plan.out.lanes == 4
    assert "chop_copies" not in {part.module for part in netlist.instances}


class Powers(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.fc, self.then, self.last = nn.Linear(6, 6), then, nn.Linear(6, 4)

    def forward(self, input):
        return self.last(self.then(self.fc(input)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (lambda x: x**3, "expected the exponent 2; write other powers as products"),
        (lambda x: 2**x, "expected the exponent 2"),
        (lambda x: x**x, "expected the exponent 2"),
        (lambda x: F.pad(x, (1, -1), value=2.0), "expected padding with zeros"),
        (lambda x: F.pad(x[:, None], (1, 1), "reflect")[:, 0, 1:7], "torch.cat of slices"),
        (lambda x: F.interpolate(x[:, None], 12, mode="linear")[:, 0, ::2], "mode='nearest'"),
        (lambda x: F.prelu(x, torch.tensor([0.3])), "use nn.PReLU"),
    ],
)
def test_refusals_name_a_rewrite(then, reason):
    batch = {"input": torch.randn(3, 6)}
    mg = MaseGraph(Powers(then), dummy_in=batch)
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "default": INTEGER})
    with pytest.raises(ConfigError, match=reason):
        passes.lower_to_integer_transform_pass(quantized, {"batches": [batch]})
