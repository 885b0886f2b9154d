import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chop.errors import ConfigError
from chop.formats import Integer
from tests.subcases import subcases

ALL_BFLOAT16 = torch.arange(2**16).to(torch.uint16).view(torch.bfloat16)


@subcases("width", [2, 3, 4, 8, 12, 16])
@subcases("frac_width", [-4, 0, 1, 4, 7, 11])
def test_equals_torch_fake_quantize(width, frac_width):
    fmt = Integer(width, frac_width)
    normal = torch.randn(100_000, generator=torch.Generator().manual_seed(width))
    finite = ALL_BFLOAT16.float()
    finite = finite[finite.abs() < 2**40]  # torch's own integer cast overflows beyond
    for x in (normal * 2.0 ** (width - frac_width - 2), finite):
        low, high = fmt.code_range
        oracle = torch.fake_quantize_per_tensor_affine(x, 2.0**-frac_width, 0, low, high)
        assert int((fmt.round(x) != oracle).sum()) == 0


@subcases("signed", [True, False])
@subcases("width, frac_width", [(2, 0), (4, 2), (6, 6), (8, 4)])
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


@subcases("width", [2, 3, 4, 6, 8])
@subcases("options", [{}, {"floor": True}, {"is_signed": False}])
@subcases("scale", [0.05, 1.0, 37.0])
def test_mse_is_the_best_of_all_fractions(width, options, scale):
    x = torch.randn(5000, generator=torch.Generator().manual_seed(width)) * scale
    fitted = Integer(width, "auto", **options).fitted(x)

    def error(frac_width):
        return (Integer(width, frac_width, **options).round(x) - x).double().square().mean().item()

    assert error(fitted.frac_width) <= min(map(error, range(-10, 20))) * (1 + 1e-6)
    assert Integer(width, "mse", **options).fitted(x) == fitted


@subcases("width", [2, 3, 4, 8])
@subcases("options", [{}, {"floor": True}, {"is_signed": False}])
def test_minmax_is_exact_at_the_ends(width, options):
    for seed in range(20):
        x = torch.randn(100, generator=torch.Generator().manual_seed(seed)) * 3
        x = x.abs() if "is_signed" in options else x
        fitted = Integer(width, "minmax", **options).fitted(x)
        assert not fitted.saturates(x).any()
        assert Integer(width, fitted.frac_width + 1, **options).saturates(x).any()


def test_fitting_sees_every_column_of_a_matrix():
    x = torch.full((2048, 1024), 0.01)
    x[:, 3::8] = 5.0
    best = Integer(4, "mse").fitted(x[:8])
    assert Integer(4, "mse").fitted(x) == best


@pytest.mark.parametrize("percentile", [50, 90, 99, 99.9, 100])
@pytest.mark.parametrize("width", [3, 6])
@pytest.mark.parametrize("options", [{}, {"floor": True}, {"is_signed": False}])
@pytest.mark.sampled(3)
def test_percentile_is_the_finest_grid_that_saturates_so_few(percentile, width, options):
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(width)) * 3
    x = x.abs() if "is_signed" in options else x
    fitted = Integer(width, "percentile", percentile=percentile, **options).fitted(x)
    assert fitted == Integer(width, fitted.frac_width, **options)

    def saturated(frac_width):
        return Integer(width, frac_width, **options).saturates(x).double().mean().item() * 100

    assert saturated(fitted.frac_width) <= 100 - percentile + 1e-9
    assert saturated(fitted.frac_width + 1) > 100 - percentile
    # value by value: the largest fraction at which it does not saturate
    few = x[:500]
    kept = {f: ~Integer(width, f, **options).saturates(few) for f in range(-8, 24)}
    needs = [max(f for f in kept if kept[f][place]) for place in range(500)]
    small = Integer(width, "percentile", percentile=percentile, **options).fitted(few)
    assert small.frac_width == sorted(needs)[min(int(500 * (100 - percentile) / 100 + 1e-6), 499)]


def test_percentile_ignores_zeros_and_outliers():
    x = torch.cat([torch.zeros(100_000), torch.rand(10_000) + 0.5, torch.tensor([1000.0])])
    assert Integer(8, "percentile").fitted(x).frac_width == 6
    assert Integer(8, "minmax").fitted(x).frac_width == -3
    assert Integer(8, "percentile", percentile=100).fitted(x).frac_width == -3


@subcases("frac_width", [-3, 0, 4, 9])
@subcases("options", [{}, {"floor": True}, {"is_signed": False}])
@subcases("scale", [0.01, 1.0, 300.0])
def test_auto_width_is_the_smallest_that_saturates_nothing(frac_width, options, scale):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * scale
    x = x.abs() if "is_signed" in options else x
    fitted = Integer("auto", frac_width, **options).fitted(x)
    assert not fitted.saturates(x).any()
    narrower = fitted.width - 1
    if narrower >= (1 if "is_signed" in options else 2):
        assert Integer(narrower, frac_width, **options).saturates(x).any()
    assert torch.equal(Integer("auto", frac_width, **options).round(x), fitted.round(x))


def test_auto_width_ends_at_32_bits_and_starts_at_the_least():
    assert Integer("auto", 0).fitted(torch.tensor([1e30])).width == 32
    assert Integer("auto", 0).fitted(torch.zeros(3)).width == 2
    assert Integer("auto", 0, is_signed=False).fitted(torch.tensor([])).width == 1
    assert Integer("auto", 0, is_signed=False).fitted(torch.tensor([-5.0])).width == 1
    assert Integer("auto", 0).bits() == 32
    with pytest.raises(ConfigError, match="integer auto.4: call `fitted"):
        Integer("auto", 4).encode(torch.zeros(2))


def test_labels_say_what_is_derived():
    labels = [fmt.label for fmt in (Integer(8, 4), Integer(6, "percentile"), Integer("auto", 3))]
    assert labels == ["integer 8.4", "integer 6.p99.9", "integer auto.3"]
    assert Integer(6, "percentile", False, percentile=99).label == "uinteger 6.p99"


@subcases("samples", [[], [0.0], [float("nan")], [float("inf")]])
@subcases("rule", ["minmax", "mse", "percentile"])
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


@subcases(
    "arguments, message",
    [
        ({"width": -3, "frac_width": 1}, "got -3, expected 1 to 32 bits"),
        ({"width": 33, "frac_width": 1}, "got 33"),
        ({"width": 8, "frac_width": 500}, "got 500"),
        ({"width": 1, "frac_width": 0}, "needs 2 bits"),
        ({"width": "8", "frac_width": 0}, "width: expected int or 'auto', got '8'"),
        ({"width": 8.0, "frac_width": 0}, "width: expected int or 'auto', got 8.0"),
        ({"width": "auto", "frac_width": "mse"}, "cannot both be derived"),
        ({"width": 8, "frac_width": 4, "percentile": 0}, "percentile: got 0, expected above 0"),
        ({"width": 8, "frac_width": "foo"}, "frac_width: expected int or 'auto'"),
        ({"width": 8, "frac_width": True}, "frac_width: expected int"),
    ],
)
def test_widths_out_of_range_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Integer(**arguments)
