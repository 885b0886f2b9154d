"""A new element takes its class; each backend that is to know it takes one row in a table."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chop.export.onnx.grids import get_grid
from chop.formats import REGISTRY, NumberFormat, QuantSpec, from_key, reference
from chop.formats.elements import Element
from chop.formats.groups import Blocks, Whole
from chop.formats.layout import Layout
from chop.formats.scaling import FloatScale
from chop.formats.statistic import LARGEST
from chop.kernels import KERNELS, fake_quantize, integers, plan
from chop.kernels.codes import WHOLE, Packed, fixed_tables
from chop.kernels.cpu import build, int8
from chop.kernels.cpu import fake_quantize as cpu_fake_quantize
from chop.kernels.cpu.reader import find_reader
from chop.kernels.integers import Integers
from chop.kernels.plan import FIXED
from chop.kernels.triton import rules
from chop.nn.packed import pack
from chop.nn.quantized import QuantLinear
from chop.testing import formats as checks
from tests.kernels.examples import DTYPES, inputs, same
from tests.subcases import subcases

NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Dettmers et al. 2023 (QLoRA), arXiv:2305.14314, appendix E."""


@dataclass(frozen=True)
class Codebook(Element):
    """The numbers of an ascending list, to nearest, ties to the upper one. There is only +0."""

    book: tuple[float, ...]
    width: int = 4

    @property
    def largest(self):
        return max(map(abs, self.book))

    def _book(self, x):
        return torch.tensor(self.book, dtype=torch.float64, device=x.device)

    def codes(self, y):
        book = self._book(y)
        return torch.bucketize(y.contiguous(), (book[1:] + book[:-1]) / 2, right=True)

    def values(self, codes):
        return self._book(codes)[codes]

    def round(self, x):
        return self.values(self.codes(x.nan_to_num(0.0))).masked_fill(x.isnan(), torch.nan)


@dataclass(frozen=True)
class Limited(Element):
    """Whole numbers up to a limit, in two's complement of 8 bits, to nearest, ties to even."""

    limit: int
    width: int = 8

    @property
    def largest(self):
        return float(self.limit)

    def round(self, x):
        return x.round().clamp(-self.limit, self.limit) + 0.0  # turns -0 into +0

    def saturates(self, x):
        return x.round().abs() > self.limit

    def codes(self, y):
        return y.long() & 255

    def values(self, codes):
        return (codes - (codes >> 7 << 8)).double()


@dataclass(frozen=True)
class BlockNF4(NumberFormat):
    """NF4 times a float32 for each 64 of a row."""

    name: ClassVar[str] = "block_nf4"

    def layout(self):
        return Layout(Codebook(NF4), Blocks((64,)), FloatScale(LARGEST, 1.0, is_positive=True))


@dataclass(frozen=True)
class RowPercent(NumberFormat):
    """Percents of the largest magnitude of a row."""

    name: ClassVar[str] = "row_percent"

    def layout(self):
        return Layout(Limited(100), Whole("row"), FloatScale(LARGEST, 100.0, is_positive=True))


KINDS = (BlockNF4, RowPercent)
for _kind in KINDS:
    del REGISTRY[_kind.name]
CACHES = (plan.get_layout, plan.get_plan, fixed_tables, rules.element_rule)


def every_kind(kept=None):
    return subcases("kind", KINDS, ids=lambda kind: kind.name, kept=kept)


@pytest.fixture(autouse=True)
def _registered():
    if build.library().library is None:
        pytest.skip(build.library().detail)
    REGISTRY.update({kind.name: kind for kind in KINDS})
    yield
    for kind in KINDS:
        del REGISTRY[kind.name]
    forget()


def forget():
    """What was concluded from the tables before they had, or after they have lost, a row."""
    for cache in (*CACHES, from_key):
        cache.cache_clear()
    cpu_fake_quantize._LINES.clear()


@pytest.fixture
def rows(monkeypatch):
    """What a table says of the element: the numbers that the backend's core of it works with."""

    def steps(element):
        ends = {"low": -element.limit, "high": element.limit}
        return {"core": FIXED, "steps": 1.0, "step": 1.0, "zero": 0.0, "floors": False, **ends}

    def fixed_rule(element):
        return rules.FixedRule(1.0, 1.0, -element.limit, element.limit, False, False)

    def whole(element):
        return Integers(-element.limit, element.limit, 1.0)

    monkeypatch.setitem(plan.ELEMENTS, Limited, steps)  # C++ and PyTorch round it
    monkeypatch.setitem(integers.ELEMENTS, Limited, whole)  # products of integers, and ONNX
    monkeypatch.setitem(rules.ELEMENTS, Limited, fixed_rule)  # Triton rounds it
    forget()


def packed_layer(fmt, data_in=None):
    spec = QuantSpec(weight=fmt) if data_in is None else QuantSpec(data_in=data_in, weight=fmt)
    layer = QuantLinear.from_float(nn.Linear(320, 256), spec).eval()
    return layer, pack(layer).eval()


@subcases("check", checks.CHECKS, ids=lambda check: check.name)
@every_kind()
def test_conformance(check, kind):
    is_lopsided = kind is BlockNF4  # eight numbers above zero, seven below
    if check.applies(kind()) and not (is_lopsided and check.run is checks.rounding_mirrors_signs):
        check.run(kind())


@every_kind()
def test_without_a_row_the_reference_rounds_it(kind):
    fmt = kind()
    for dtype in DTYPES:
        for x in inputs(dtype):
            out = torch.full_like(x, 77.0)
            assert not KERNELS["cpu"].run(x, fmt, out) and (out == 77).all()
            assert same(fake_quantize(x, fmt), fmt.round(x))
    assert rules.element_rule(fmt) is None and rules.code_rule(fmt) is None
    assert int8.whole_rule(fmt) is None and get_grid(fmt, torch.ones(3, 4)) is None


@every_kind()
def test_without_a_row_packed_weights_are_read_through_a_table(kind, monkeypatch):
    fmt = kind()
    layer, twin = packed_layer(fmt)
    stored, weight = twin.encoded("weight"), fmt.round(layer.weight)
    packed = Packed(stored.codes, stored.scales, stored.tensor_scale, stored.shape, fmt.key)
    assert find_reader(packed) is not None
    monkeypatch.delattr(reference, "decode")
    assert same(twin.weight, weight)
    with torch.no_grad():
        for x in (torch.randn(2, 320), torch.randn(40, 320)):
            expected = F.linear(x, weight, layer.bias)
            assert (twin(x) - expected).norm() < 10 ** (-50 / 20) * expected.norm()


def test_by_its_rows_every_backend_takes_it(rows, tmp_path):
    fmt = RowPercent()
    for dtype in DTYPES:
        for x in inputs(dtype):
            out, mask = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
            assert KERNELS["cpu"].run(x, fmt, out, mask) and same(out, fmt.round(x)), x.shape
            assert torch.equal(mask, fmt.saturates(x))
    assert rules.element_rule(fmt).high == 100
    assert int8.whole_rule(fmt) == int8.WholeRule(-100, 100, 0.0, by_row=True)
    weight = torch.randn(6, 9)
    grid = get_grid(fmt, weight)
    assert (grid.low, grid.high, grid.scale.shape) == (-100, 100, (6,))
    codes = (weight / grid.scale[:, None]).round()
    torch.testing.assert_close(codes * grid.scale[:, None], fmt.round(weight))


def test_by_its_rows_it_is_multiplied_as_integers(rows):
    fmt = RowPercent()
    assert fixed_tables(fmt).reading == WHOLE
    layer, twin = packed_layer(fmt, data_in=fmt)
    x = torch.randn(40, 320)
    with torch.no_grad():
        torch.testing.assert_close(twin(x), layer(x), rtol=1e-4, atol=1e-4)
