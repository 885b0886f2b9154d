"""Searches in C++ against the readable references, bit for bit."""

import math

import pytest
import torch

from chop.formats import GroupInteger, KQuant
from chop.formats.ordered_sum import sum_in_halves
from chop.formats.searched_scale import SearchedScale
from chop.kernels import searches
from tests.kernels.instruction_sets import SETS, one_set
from tests.subcases import subcases

INPUTS = {
    "normal": lambda shape: torch.randn(shape),
    "bfloat16": lambda shape: torch.randn(shape).bfloat16(),
    "float16": lambda shape: torch.randn(shape).half(),
    "zeros": lambda shape: torch.zeros(shape),
    "signed zeros": lambda shape: torch.zeros(shape) * torch.randn(shape),
    "constant": lambda shape: torch.full(shape, -0.3),
    "of equal magnitude": lambda shape: torch.randn(shape).sign(),
    "few levels": lambda shape: torch.randint(-4, 4, shape).float(),
    "denormal": lambda shape: torch.randn(shape) * 1e-40,
    "near the end": lambda shape: torch.randn(shape).clamp(-1, 1) * torch.finfo().max,
    "wide": lambda shape: torch.randn(shape) * 10 ** (8 * torch.randn(shape)),
    "float64": lambda shape: torch.randn(shape).double() * 1e300,
    "not numbers": lambda shape: torch.randn(shape).where(torch.rand(shape) < 0.8, math.nan),
    "infinite": lambda shape: torch.randn(shape).where(torch.rand(shape) < 0.8, -math.inf),
    "only infinite": lambda shape: torch.full(shape, math.inf),
    "transposed": lambda shape: torch.randn(shape[::-1]).t(),
}
GROUPS = (1, 3, 32, 128)


@pytest.fixture(scope="module", params=SETS)
def compiled(request, loops):
    build = one_set(request.param, "searches", loops)
    patch = pytest.MonkeyPatch()
    patch.setattr(searches, "library", lambda: build)
    patch.setattr(searches, "is_ready", lambda: True)
    yield
    patch.undo()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", range(2, 9))
@subcases("name", INPUTS)
def test_scales_equal_those_of_the_reference(name, width, compiled):
    torch.manual_seed(0)
    for size in GROUPS:
        rows = INPUTS[name]((19, size)).double()
        scaling = SearchedScale(-(2 ** (width - 1)))
        expected = scaling.search(rows)
        assert torch.equal(torch.ops.chop.searched_scales(rows, scaling.lowest_code), expected)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fmt", [GroupInteger(4, group_size=32), GroupInteger(2), KQuant(3)])
def test_codes_equal_those_of_the_reference(fmt, compiled, monkeypatch):
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))  # ragged groups
    fast, rounded = fmt.encode(x), fmt.round(x)
    monkeypatch.setattr(searches, "is_ready", lambda: False)  # too small to compile for
    slow = fmt.encode(x)
    assert torch.equal(fast.codes, slow.codes) and torch.equal(fast.scales, slow.scales)
    assert torch.equal(rounded, fmt.round(x))


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_threads_changes_nothing(count, threads, compiled):
    rows = torch.randn(2**12, 32).double()
    threads(count)
    scales = torch.ops.chop.searched_scales(rows, -8)
    assert torch.equal(scales, SearchedScale(-8).search(rows))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
def test_sums_in_halves_add_every_term(count):
    terms = torch.randn(count, 3, dtype=torch.float64)
    whole = terms.sum(0, keepdim=True)
    total = sum_in_halves(terms.clone())
    torch.testing.assert_close(total, whole if count else terms)


def test_it_is_an_operator_of_good_standing():
    utilities = ("test_schema", "test_faketensor")
    rows = torch.randn(6, 7).double()
    torch.library.opcheck(torch.ops.chop.searched_scales, (rows, -8), test_utils=utilities)
