"""Circuits of pools, against the operators."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.hardware.costs.devices import ECP5, XC7
from chop.hardware.costs.estimate import design_usage
from chop.hardware.design.emit import emit
from chop.hardware.integer_form import integer_form
from chop.nn import integer as i
from chop.nn.integer import Call, Edge, IntegerOptions
from tests.hardware.bench import PROFILES, check, drawn, needs_tools

pytestmark = needs_tools
SOME = ("uniform", "bursts")
BYTES = Edge.of(0.25, -128, 127)


def image(edge, channels, *sizes, samples=5):
    """Random images whose channels travel last."""
    positions = torch.arange(channels * torch.Size(sizes).numel()).view(*sizes, channels)
    return drawn(edge, channels, *sizes, samples=samples, positions=positions.movedim(-1, 0))


MAXIMA = [
    (i.IntegerMaxPool2d, (4, 8, 8), {"kernel_size": 2}, 32, PROFILES),
    (i.IntegerMaxPool1d, (3, 11), {"kernel_size": 3, "stride": 2, "padding": 1}, 99, PROFILES),
    (i.IntegerMaxPool2d, (6, 7, 5), {"kernel_size": 3, "stride": 1, "padding": 1}, 700, SOME),
    (
        i.IntegerMaxPool2d,
        (2, 9, 9),
        {"kernel_size": (3, 2), "stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True},
        1,
        ("none", *SOME),
    ),
    (
        i.IntegerMaxPool2d,
        (3, 5, 8),
        {"kernel_size": 2, "stride": 3, "ceil_mode": True},
        1,
        ("none", *SOME),
    ),
    (i.IntegerMaxPool2d, (1, 1, 1), {"kernel_size": 1}, 1, ("none", *SOME)),
    (i.IntegerMaxPool2d, (5, 4, 3), {"kernel_size": (4, 3)}, 1, ("none", *SOME)),
    (i.IntegerMaxPool1d, (2, 13), {"kernel_size": 2, "stride": 5}, 1, ("none", *SOME)),
]


@pytest.mark.parametrize(("kind", "shape", "settings", "fold", "profiles"), MAXIMA)
@pytest.mark.sampled(1)
def test_max_pool(kind, shape, settings, fold, profiles):
    edge = Edge.of(0.25, -(2**40), 2**40) if shape == (5, 4, 3) else BYTES
    operator = kind.from_quantized(None, [edge], IntegerOptions(), Call([shape], settings))
    check(operator, image(edge, *shape), fold=fold, profiles=profiles)


AVERAGES = [
    (i.IntegerAvgPool2d, (4, 8, 8), {"kernel_size": 2}, 64, PROFILES),
    (i.IntegerAvgPool1d, (3, 11), {"kernel_size": 3, "stride": 2, "padding": 1}, 99, PROFILES),
    (i.IntegerAvgPool2d, (2, 7, 9), {"kernel_size": (3, 5), "stride": (2, 3)}, 1, SOME),
    (i.IntegerAvgPool2d, (5, 4, 6), {"kernel_size": 3, "stride": 1, "padding": 1}, 1, SOME),
    (i.IntegerAdaptiveAvgPool2d, (6, 5, 7), {"output_size": 1}, 40, ("none", *SOME)),
    (i.IntegerAdaptiveAvgPool1d, (2, 12), {"output_size": 4}, 1, ("none", *SOME)),
    (i.IntegerAdaptiveAvgPool2d, (1, 4, 6), {"output_size": (2, None)}, 1, SOME),
]


@pytest.mark.parametrize(("kind", "shape", "settings", "fold", "profiles"), AVERAGES)
@pytest.mark.long
def test_avg_pool(kind, shape, settings, fold, profiles):
    call = Call([shape], settings)
    operator = kind.from_quantized(None, [BYTES], IntegerOptions(), call)
    check(operator, image(BYTES, *shape), fold=fold, profiles=profiles)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel_size": 3, "padding": 1, "count_include_pad": False}, "different counts"),
        ({"kernel_size": 2}, "channels last"),
    ],
)
def test_average_pools_without_a_circuit_are_refused(settings, message):
    call = Call([(3, 8)], settings)
    operator = i.IntegerAvgPool1d.from_quantized(None, [BYTES], IntegerOptions(), call)
    with pytest.raises(ConfigError, match=message):
        check(operator, drawn(BYTES, 3, 8))


def test_images_whose_channels_travel_first_are_refused():
    operator = i.IntegerMaxPool1d.from_quantized(
        None, [BYTES], IntegerOptions(), Call([], {"kernel_size": 2})
    )
    with pytest.raises(ConfigError, match="channels last"):
        check(operator, drawn(BYTES, 3, 8))


@pytest.mark.parametrize(
    ("pool", "fold", "counted"),
    [(nn.MaxPool2d(2), 2000, (231, 237)), (nn.AvgPool2d(2), 500, (419, 450))],
)
def test_registers_of_a_pool_are_those_that_yosys_counts(pool, fold, counted):
    """Counts are those of synth_ecp5 and synth_xilinx of Yosys 0.23, ahead of placement."""
    mg = MaseGraph(nn.Sequential(pool), dummy_in={"input": torch.randn(2, 16, 8, 8)})
    config = {"config": {"name": "integer", "width": 8, "frac_width": 5}}
    quantized, _ = passes.quantize_transform_pass(mg, {"by": "type", "default": config})
    design = emit(integer_form(quantized), fold)
    for family, number in zip((ECP5, XC7), counted, strict=True):
        usage = design_usage(design.netlist, design.connections, family)
        assert usage.ff == pytest.approx(number, rel=0.15)
