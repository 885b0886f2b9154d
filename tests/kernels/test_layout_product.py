"""Elements, groupings and scalings in any combination: all backends give the reference's bits."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from chop.errors import ConfigError
from chop.formats import NumberFormat
from chop.formats.base import REGISTRY
from chop.formats.elements import Denormal, Fixed, Log2, Minifloat, Sign, Trit
from chop.formats.groups import WHOLE_TENSOR, Blocks, Whole
from chop.formats.layout import Layout
from chop.formats.scaling import (
    ConstantScale,
    FloatScale,
    ScaledFloatScale,
    SharedExponent,
    Unscaled,
)
from chop.formats.statistic import LARGEST, MEAN, Statistic, Threshold
from chop.kernels import KERNELS
from chop.kernels.base import fake_quantize_marking
from chop.kernels.codes import Packed
from chop.kernels.cpu import packed
from tests.kernels.examples import EDGES, same

pytestmark = pytest.mark.usefixtures("loops")

ELEMENTS = [
    *(Fixed(8, 4, "twos_complement"), Fixed(8, 4, "twos_complement", is_symmetric=False)),
    Fixed(8, 4, "twos_complement", is_symmetric=False, rounding="floor"),
    *(Fixed(8, 0, "unsigned"), Fixed(4, 3, "sign_magnitude"), Fixed(30, 3, "twos_complement")),
    *(Minifloat(4, 3, 7, "fn"), Minifloat(8, 7, 127, "ieee")),
    Denormal(4, 3, 7),
    *(Log2(4, 3), Log2(8, 63, "linear", zero_code=True)),
    *(Sign(True, False), Sign(False, False)),
    *(Trit(0.3), Trit(Threshold(0.7, "mean")), Trit(Threshold(0.7, "median"))),
]
GROUPS = [WHOLE_TENSOR, Whole("channel"), Whole("row"), Blocks((16,)), Blocks((4,), 0)]
GROUPS += [Blocks((5,)), Blocks((2, 4))]
SCALINGS = [
    SharedExponent(-127, 8, has_nan=True),
    SharedExponent(-7, 4, offset=1, increment_threshold=1.3),
    *(FloatScale(LARGEST, 7.0, is_positive=True), FloatScale(LARGEST, 7.0), FloatScale(MEAN)),
    FloatScale(MEAN, 3.0, is_positive=True),
    FloatScale(Statistic(quantile=0.9), 7.0, is_positive=True),
    FloatScale(Statistic(is_signed=False), 7.0, is_positive=True),
    *(ScaledFloatScale(Minifloat(4, 3, 7, "fn"), 6.0, given=x) for x in (None, 0.001)),
    *(ConstantScale((0.37,)), ConstantScale((-0.37,)), ConstantScale((0.0,))),
]
PRODUCT = [Layout(*parts) for parts in itertools.product(ELEMENTS, GROUPS, SCALINGS)]
ALONE = [
    Layout(element, scaling=scaling, overflow=overflow)
    for element in ELEMENTS
    for scaling, overflow in ((None, "saturate"), (None, "infinity"), (Unscaled(), "saturate"))
]
LEVELS = [
    Layout(element, scaling=scaling, levels=2)
    for element in ELEMENTS
    for scaling in (FloatScale(MEAN), FloatScale(LARGEST, 7.0), ConstantScale((1.5, 0.25)))
    if element.threshold is None
]
SHARES = 12


@dataclass(frozen=True)
class Composed(NumberFormat):
    """A layout by its number."""

    name: ClassVar[str] = "composed_of_a_product"

    index: int

    def layout(self):
        return EVERY[self.index]


EVERY = [*PRODUCT, *ALONE, *LEVELS]


@pytest.fixture(autouse=True)
def known():
    """The format is known while its tests run, and to no other."""
    REGISTRY[Composed.name] = Composed
    yield
    del REGISTRY[Composed.name]


del REGISTRY[Composed.name]


def inputs():
    torch.manual_seed(0)
    edges = torch.randn(7, 33)
    edges[1, : EDGES.numel()] = EDGES
    spread = torch.randn(6, 32) * torch.exp2(torch.randint(-40, 40, (6, 1)).float())
    return edges, spread, torch.randn(6, 32).bfloat16(), torch.randn(2, 3, 8).half()


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.sampled(1)
def test_backends_give_the_bits_of_the_reference(share):
    chosen = range(share, len(EVERY), SHARES)
    assert len(PRODUCT) == len(ELEMENTS) * len(GROUPS) * len(SCALINGS)
    taken = 0
    for index, x in itertools.product(chosen, inputs()):
        fmt = Composed(index)
        expected, told = fmt.round(x), (fmt.layout(), x.dtype, x.shape)
        out = torch.full_like(x, 77.0)
        taken += KERNELS["cpu"].run(x, fmt, out)
        assert same(out, expected) or bool((out == 77).all()), told
        rounded, mask = fake_quantize_marking(x, fmt)
        assert same(rounded, expected) and torch.equal(mask, fmt.saturates(x)), told
        stored = fmt.encode(x)
        decoded = fmt.decode(stored)
        is_number = ~expected.isnan()
        assert same(decoded[is_number], expected[is_number]), told
        parts = Packed(stored.codes, stored.scales, stored.tensor_scale, x.shape, fmt.key)
        natively = packed.decode(parts, x.dtype)
        assert natively is None or same(natively, decoded), told
    assert taken > 0.8 * len(chosen) * len(inputs())


def test_levels_are_refused_where_the_reference_has_none():
    element = Fixed(4, 0, "twos_complement")
    for groups, scaling in (
        (Blocks((16,)), FloatScale(MEAN)),
        (WHOLE_TENSOR, None),
        (WHOLE_TENSOR, SharedExponent(-127, 8)),
    ):
        with pytest.raises(ConfigError, match="levels require .* a float scale"):
            Layout(element, groups, scaling, levels=2)
    with pytest.raises(ConfigError, match="levels require elements without a threshold"):
        Layout(Trit(0.3), scaling=FloatScale(MEAN), levels=2)
    with pytest.raises(ConfigError, match="expected 3 scales, got 2"):
        Layout(element, scaling=ConstantScale((1.0, 2.0)), levels=3)
