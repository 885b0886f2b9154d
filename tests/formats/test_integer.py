import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.formats import Integer

ALL_BFLOAT16 = torch.arange(2**16).to(torch.uint16).view(torch.bfloat16)


@pytest.mark.parametrize("width", [2, 3, 4, 8, 12, 16])
@pytest.mark.parametrize("frac_width", [-4, 0, 1, 4, 7, 11])
def test_equals_torch_fake_quantize(width, frac_width):
    fmt = Integer(width, frac_width)
    normal = torch.randn(100_000, generator=torch.Generator().manual_seed(width))
    finite = ALL_BFLOAT16.float()
    finite = finite[finite.abs() < 2**40]  # torch's own integer cast overflows beyond
    for x in (normal * 2.0 ** (width - frac_width - 2), finite):
        low, high = fmt.code_range
        oracle = torch.fake_quantize_per_tensor_affine(x, 2.0**-frac_width, 0, low, high)
        assert int((fmt.round(x) != oracle).sum()) == 0


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("width, frac_width", [(2, 0), (4, 2), (6, 6), (8, 4)])
def test_is_the_nearest_code_with_ties_to_even(width, frac_width, signed):
    fmt = Integer(width, frac_width, is_signed=signed)
    low, high = fmt.code_range
    book = torch.arange(low, high + 1).double() / 2**frac_width
    x = torch.linspace(float(book[0]) - 2, float(book[-1]) + 2, 40_001).double()
    ties = (book[1:] + book[:-1]) / 2
    x = torch.cat([x, ties])
    distance = (x[:, None] - book).abs()
    best = distance.min(1, keepdim=True).values
    rounded = fmt.round(x)
    assert torch.equal((x - rounded).abs(), best[:, 0])
    codes = (fmt.round(ties) * 2**frac_width).long()
    assert (codes % 2 == 0).all()


def test_special_values():
    fmt = Integer(8, 4)
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-45])
    y = fmt.round(x)
    assert y[0].isnan()
    assert y[1:].tolist() == [127 / 16, -8.0, 0.0, 0.0, 0.0]
    assert not torch.signbit(y[3])
    assert fmt.decode(fmt.encode(x))[0] == 0
    assert not fmt.saturates(x)[0]


def test_floor_truncates_as_hardware_does():
    fmt = Integer(8, 2, floor=True)
    assert fmt.round(torch.tensor([0.99, -0.01, 0.25])).tolist() == [0.75, -0.25, 0.25]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30),
    st.integers(2, 16),
)
def test_minmax_is_the_finest_grid_that_saturates_nothing(numbers, width):
    x = torch.tensor(numbers)
    fitted = Integer(width, "minmax").fitted(x)
    assert not fitted.saturates(x).any()
    finer = Integer(width, fitted.frac_width + 1) if fitted.frac_width < 100 else None
    if (x != 0).any() and finer and x.abs().max() > 1e-20:
        assert finer.saturates(x).any()


def test_mse_is_the_best_of_all_fractions():
    x = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 0.05
    fitted = Integer(4, "auto").fitted(x)
    errors = {f: (Integer(4, f).round(x) - x).square().mean().item() for f in range(-10, 20)}
    assert fitted.frac_width == min(errors, key=errors.get)
    assert errors[fitted.frac_width] < errors[2] / 2
    assert Integer(4, "mse").fitted(x) == fitted


@pytest.mark.parametrize("samples", [[], [0.0], [float("nan")], [float("inf")]])
@pytest.mark.parametrize("rule", ["minmax", "mse"])
def test_fitting_to_nothing_useful_gives_a_valid_format(samples, rule):
    fitted = Integer(8, rule).fitted(torch.tensor(samples))
    assert fitted.is_fitted
    assert fitted.round(torch.zeros(2)).tolist() == [0.0, 0.0]


def test_an_unfitted_format_follows_each_tensor_and_cannot_be_stored():
    fmt = Integer(8, "auto")
    assert not fmt.is_fitted
    x = torch.randn(100) * 1e-3
    assert (fmt(x) - x).abs().max() < 1e-4
    with pytest.raises(ConfigError, match="fitted"):
        fmt.encode(x)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"width": -3, "frac_width": 1}, "got -3, expected 1 to 32 bits"),
        ({"width": 33, "frac_width": 1}, "got 33"),
        ({"width": 8, "frac_width": 500}, "got 500"),
        ({"width": 1, "frac_width": 0}, "needs 2 bits"),
    ],
)
def test_widths_out_of_range_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Integer(**arguments)
