"""A format takes one class in one file: everything else follows, and works."""

import importlib.util
import pickle
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import ConfigError
from chop.formats import Integer, MXInt, QuantSpec, formats, get_format, parse_format
from chop.formats.base import REGISTRY
from chop.formats.parsing import from_key
from chop.nn.packed import pack
from chop.nn.quantized import QuantConv2d, QuantLinear, modules
from chop.nn.quantized.modules import conv2d, linear
from chop.report.format_page import PAGE, PICTURES, pages
from chop.testing import formats as checks
from tests.formats.examples import list_examples
from tests.passes.conftest import Net, with_metadata

SQUARES = '''
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from chop.config import Range
from chop.formats.base import Encoded, NumberFormat
from chop.formats.packing import pack_bits, unpack_bits


@dataclass(frozen=True)
class Squares(NumberFormat):
    """Squares, of either sign.

    Values: s (k / 2^frac_width)^2, 0 <= k < 2^(width-1).

    Attributes:
        width: bits per element, 2 to 8.
        frac_width: binary places of the root.

    Source: made up.
    """

    name: ClassVar[str] = "squares"
    search_space: ClassVar = {"width": (3, 5, 8), "frac_width": (0, 2)}

    width: Annotated[int, Range(2, 8, "bits")]
    frac_width: int = 2

    def book(self):
        return (torch.arange(2.0 ** (self.width - 1)).double() / 2**self.frac_width).square()

    def codes(self, x):
        book = self.book()
        magnitudes = x.double().abs().nan_to_num(0).contiguous()
        k = torch.bucketize(magnitudes, (book[1:] + book[:-1]) / 2)
        return k | ((x < 0) & (k > 0)).long() << self.width - 1

    def values(self, codes, dtype):
        magnitude = self.book()[codes & 2 ** (self.width - 1) - 1]
        return torch.where(codes >> self.width - 1 > 0, -magnitude, magnitude).to(dtype)

    def round(self, x):
        return self.values(self.codes(x), x.dtype).masked_fill(x.isnan(), torch.nan)

    def bits(self, shape=()):
        return float(self.width)

    def encode(self, x):
        return Encoded(pack_bits(self.codes(x), self.width), x.shape, x.dtype)

    def decode(self, encoded):
        codes = unpack_bits(encoded.codes, self.width, encoded.shape.numel()).long()
        return self.values(codes, encoded.dtype).view(encoded.shape)

    def saturates(self, x):
        return x.double().abs() > self.book()[-1]
'''
BLOCK_RADIX4 = '''
from dataclasses import dataclass
from typing import ClassVar

from chop.formats.elements import Fixed
from chop.formats.exponents import floor_log2
from chop.formats.scaled import BlockFormat
from chop.formats.scaling import SharedExponent


@dataclass(frozen=True)
class BlockRadix4(BlockFormat):
    """Sign and magnitude, times a power of four for a block.

    Values: s 4^E k/2^m, m = width - 1, 0 <= k < 2^m; E is the least that saturates nothing but by
    rounding.

    Attributes:
        width: bits per element.

    Source: made up.
    """

    name: ClassVar[str] = "block_radix4"
    search_space: ClassVar = {"width": (4, 6, 8), "block_size": (16, 32)}

    width: int

    def validate_element(self):
        pass

    @property
    def element(self):
        return Fixed(self.width, self.width - 1, "sign_magnitude")

    @property
    def scaling(self):
        return PowerOfFour(lowest=-128, width=8)


@dataclass(frozen=True)
class PowerOfFour(SharedExponent):
    """The even exponent above the largest magnitude."""

    def exponent(self, amax):
        return (floor_log2(amax) + 2) // 2 * 2
'''
FILES = {"squares": SQUARES, "block_radix4": BLOCK_RADIX4}


@pytest.fixture(params=FILES)
def kind(request, tmp_path, monkeypatch):
    """The class, from a file of its own; afterwards nobody knows it any more."""
    name = request.param
    path = tmp_path / f"{name}.py"
    path.write_text(FILES[name])
    spec = importlib.util.spec_from_file_location(f"{name}_of_a_test", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    try:
        spec.loader.exec_module(module)
        yield get_format(name)
    finally:
        cls = REGISTRY.pop(name)
        from_key.cache_clear()
        homes = [sys.modules[key] for key in sys.modules if key.startswith(modules.__name__ + ".")]
        for home in homes:
            for key in [k for k, v in vars(home).items() if getattr(v, "format", None) is cls]:
                delattr(home, key)


def test_the_registry_and_configs(kind):
    assert kind in formats() and get_format(kind.name) is kind
    fmt = parse_format({"name": kind.name, "width": 5})
    assert fmt == kind(width=5) and fmt.bits() >= 5 and "width=5" in fmt.label
    with pytest.raises(ConfigError, match="unknown key 'widht': did you mean 'width'"):
        parse_format({"name": kind.name, "widht": 5})
    with pytest.raises(ConfigError, match="width: expected int, got 5.0"):
        parse_format({"name": kind.name, "width": 5.0})
    with pytest.raises(ConfigError, match=f"did you mean '{kind.name}'"):
        parse_format(kind.name + "s")
    flat = {"name": kind.name, "data_in_width": 8, "weight_width": 4, "bias_width": 6}
    assert QuantSpec.parse(flat) == QuantSpec(kind(width=8), kind(width=4), kind(width=6))
    checks.search_space_holds_valid_settings(list_examples(kind)[0])


@pytest.mark.sampled(1)
def test_conformance(kind):
    asked = []
    for width in (4, 8):
        for check in checks.CHECKS:
            if check.applies(kind(width=width)):
                check.run(kind(width=width))
                asked.append(check.name)
    assert len(set(asked)) >= 14
    assert "is the nearest of all its numbers" in asked


def test_derived_operators(kind):
    cls = getattr(linear, f"Linear{kind.__name__}")
    assert cls is getattr(linear, f"Linear{kind.__name__}") is getattr(modules, cls.__name__)
    layer = cls(in_features=32, out_features=8, bias=False, config={"width": 6})
    assert isinstance(layer, QuantLinear) and layer.spec == QuantSpec(*[kind(width=6)] * 2)
    x = torch.randn(4, 32)
    expected = kind(width=6).round(x) @ kind(width=6).round(layer.weight).T
    torch.testing.assert_close(layer(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
    conv = getattr(conv2d, f"Conv2d{kind.__name__}")(3, 4, 3, config={"width": 6})
    assert isinstance(conv, QuantConv2d) and conv(torch.randn(2, 3, 8, 8)).shape == (2, 4, 6, 6)
    with pytest.raises(AttributeError, match="no attribute 'LinearSqares'"):
        _ = linear.LinearSqares


@pytest.mark.sampled(1)
def test_the_pass_by_name_packing_and_checkpoints(kind, tmp_path):
    torch.manual_seed(0)
    mg = with_metadata(MaseGraph(Net().eval(), dummy_in={"x": torch.randn(3, 1, 6, 7)}))
    operands = {"data_in": {"name": kind.name, "width": 8}, "weight": {"name": "mxint", "width": 4}}
    config = {
        "by": "type",
        "conv2d": {"config": {"name": kind.name, "width": 6}},
        "linear": {"config": operands},
    }
    quantized, info = passes.quantize_transform_pass(mg, config)
    assert info["quantized"] == 3
    assert quantized.modules["conv"].spec == QuantSpec.uniform(kind(width=6))
    assert quantized.modules["fc1"].spec == QuantSpec(kind(width=8), MXInt(4))
    x = torch.randn(5, 1, 6, 7)
    y = quantized.model(x)
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in quantized.model.parameters())
    packed, _ = passes.pack_transform_pass(quantized, {"silent": True})
    packed.export(tmp_path / "checkpoint")
    again = MaseGraph.from_checkpoint(tmp_path / "checkpoint")
    assert torch.equal(again.model(x), y.detach())
    conv = again.modules["conv"]
    assert conv.packed_bits("weight") == pytest.approx(kind(width=6).bits(conv.weight.shape), abs=1)


def test_a_packed_layer(kind):
    layer = QuantLinear.from_float(nn.Linear(64, 32, bias=False), QuantSpec(weight=kind(width=4)))
    packed = pack(layer)
    assert torch.equal(packed.weight, kind(width=4).round(layer.weight))
    assert packed.packed_bits("weight") == kind(width=4).bits((32, 64))


@pytest.mark.sampled(1)
def test_the_page_of_the_docs(kind):
    made = pages()
    (example,) = list_examples(kind)
    assert f"| `{example.label}` | " in made[PAGE] and f"## `{kind.name}`" in made[PAGE]
    assert "- `width`: bits per element" in made[PAGE] and "Source: made up." in made[PAGE]
    assert made[f"{PICTURES}/{kind.name}.svg"].startswith("<svg")
    assert replace(example, width=8) in (kind(width=8),)


def test_rounding_that_codes_and_kernels_rely_on_is_not_replaced():
    def ceiling(self, x):
        return x.ceil()

    for base, owner in ((Integer, "Integer"), (MXInt, "ScaledFormat")):
        with pytest.raises(ConfigError, match=f"Ceiling replaces the rounding of {owner}, which"):
            type("Ceiling", (base,), {"name": "ceiling", "round": ceiling})
    assert "ceiling" not in REGISTRY


def test_a_range_that_bounds_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"'ranges' is not supported\. .*Annotated\[int, Range\("):
        type("Bounded", (Integer,), {"name": "bounded", "ranges": {"width": (1, 4)}})
    assert "bounded" not in REGISTRY


def test_nothing_is_left_of_it():
    assert not set(FILES) & set(REGISTRY)
    with pytest.raises(ConfigError, match="unknown number format 'squares'"):
        get_format("squares")
    assert not hasattr(linear, "LinearSquares") and not hasattr(modules, "LinearSquares")
