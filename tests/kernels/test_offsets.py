"""Learned offsets in one pass of C++ against the readable reference, number for number."""

import math

import pytest
import torch

from chop.formats import BlockFP, GroupInteger, parse_format_string
from chop.kernels import offsets
from chop.quantization.rounding.learned_weights import LearnedWeight
from tests.kernels.instruction_sets import SETS, one_set
from tests.subcases import subcases

TEXTS = (
    "group_integer:width=3",
    "group_integer:width=4:group_size=7",
    "group_affine:width=4:group_size=48",
    "mxint:width=4",
    "mxint:width=3:block_size=7",
    "scale_integer:width=3:granularity=group:group_size=32",
    "scale_integer:width=4:granularity=channel",
    "scale_integer:width=4",
    "integer:width=4:frac_width=5",
)
FORMATS = (*map(parse_format_string, TEXTS), BlockFP(4, block_size=[4, 7]))


@pytest.fixture(scope="module", params=SETS)
def compiled(request, loops):
    build = one_set(request.param, "offsets", loops)
    patch = pytest.MonkeyPatch()
    patch.setattr(offsets, "library", lambda: build)
    yield
    patch.undo()


def use_library(monkeypatch, is_ready):
    monkeypatch.setattr(offsets, "is_ready", lambda: is_ready)


def learned(number_format, weight, gradients, start=None, fixed=None):
    """Values before each step, offsets and factors after the last one."""
    found = LearnedWeight(number_format, weight, start, fixed)
    values = []
    for step, gradient in enumerate(gradients):
        values.append(found.values())
        found.learn(gradient, (1 - step / len(gradients)) / 8)
    return [*values, found._offset, *([] if found._factor is None else [found._factor])]


def drawn_gradients(shape, count=6):
    """Gradients with zeros of both signs, NaN and infinity."""
    gradients = []
    for _ in range(count):
        gradient = torch.randn(shape)
        for value in (0.0, -0.0, math.nan, math.inf, -math.inf):
            gradient[torch.rand(shape) < 0.04] = value
        gradients.append(gradient)
    return gradients


def drawn_weight(shape):
    """Weights of several magnitudes, with groups of zeros and of single values."""
    weight = torch.randn(shape) / 20
    weight[0], weight[1, 1:], weight[2] = 0, 0, 0.25
    weight[3] *= 1e4
    weight[4] *= 1e-30
    return weight


def assert_equal(fast, slow):
    for one, other in zip(fast, slow, strict=True):
        assert torch.equal(one, other)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("has_start", [False, True])
@subcases("number_format", FORMATS, ids=str)
def test_steps_equal_those_of_the_reference(number_format, has_start, compiled, monkeypatch):
    weight, gradients = drawn_weight((9, 80)), drawn_gradients((9, 80))
    start = number_format.round(weight) if has_start else None
    fixed = torch.rand(9, 80) < 0.2 if has_start else None
    given = number_format, weight, gradients, start, fixed
    use_library(monkeypatch, True)
    fast = learned(*given)
    use_library(monkeypatch, False)
    assert_equal(fast, learned(*given))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_those_of_the_reference(dtype, compiled, monkeypatch):
    weight = (torch.randn(8, 64) / 20).to(dtype)
    gradients = [x.to(dtype) for x in drawn_gradients((8, 64), 4)]
    use_library(monkeypatch, True)
    fast = learned(GroupInteger(3), weight, gradients)
    use_library(monkeypatch, False)
    assert fast[0].dtype == dtype
    assert_equal(fast, learned(GroupInteger(3), weight, gradients))


def test_the_number_of_threads_changes_nothing(loops, threads):
    weight, gradients = torch.randn(600, 512) / 20, drawn_gradients((600, 512), 2)
    threads(1)
    once = learned(GroupInteger(3), weight, gradients)
    threads(3)
    assert_equal(once, learned(GroupInteger(3), weight, gradients))


@pytest.mark.parametrize(
    ("text", "columns", "is_taken"),
    [
        ("mxint:width=4", 64, True),
        ("mxint:width=4", offsets.LARGEST_GROUP, True),
        ("integer:width=23:frac_width=5", 64, True),
        ("integer:width=24:frac_width=5", 64, False),
        ("scale_integer:width=4", 64, True),
        ("scale_integer:width=4", offsets.LARGEST_GROUP, False),
    ],
)
def test_wide_elements_and_large_groups_stay_with_the_reference(text, columns, is_taken, loops):
    found = LearnedWeight(parse_format_string(text), torch.randn(2, columns) / 20, None, None)
    scales, ratio = found._scales()
    assert (found._kernel.values(ratio, scales.float()) is not None) == is_taken
