"""The fused softmax is torch's, up to the rounding of exponentials and sums."""

import pytest
import torch

from chop.errors import ConfigError

NAN, INF = float("nan"), float("inf")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Several rows to a program and one, whole tiles and not; a row of one number.
SHAPES = [(5, 33), (2, 3, 128), (70, 1), (3, 1000), (2, 4097)]
SINGLE = 2.0**-23


@pytest.fixture(params=["kept", "online"])
def softmax(request, device, monkeypatch):
    """The kernel's result: rows kept on the chip, or read in parts."""
    from chop.kernels.triton import softmax as module

    if request.param == "online":
        monkeypatch.setattr(module, "LONGEST_ROW", 0)
        monkeypatch.setattr(module, "TILE", 512)
    return lambda x, dim=-1: module.softmax(x.to(device), dim).cpu()


def off_by(y, exact):
    """Largest error as a share of the exact number, but for results that underflow."""
    smallest = torch.finfo(y.dtype).smallest_normal
    error = (y.double() - exact).abs()
    return (error / exact.clamp_min(smallest)).max().item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_rounded_once_from_float32(softmax, dtype):
    for shape in SHAPES:
        x = (4 * torch.randn(shape)).to(dtype)
        y, exact = softmax(x), x.double().softmax(-1)
        assert (y.dtype, y.shape) == (dtype, x.shape)
        of_sum = (shape[-1] ** 0.5 + 40) * SINGLE
        assert off_by(y, exact) < of_sum + (dtype != torch.float32) * torch.finfo(dtype).eps
        torch.testing.assert_close(
            y, x.softmax(-1), rtol=2 * torch.finfo(dtype).eps + of_sum, atol=1e-7
        )


def test_what_is_not_finite_is_as_torch_has_it(softmax):
    x = torch.randn(9, 600)
    x[0], x[1, :-1], x[2, 5], x[3, 550], x[4, 500] = -INF, -INF, INF, NAN, -INF
    x[5], x[6], x[7, :590] = 3.4e38, -3.4e38, -INF
    x[8, ::2], x[8, 1::2] = -0.0, 0.0
    y, expected = softmax(x), x.softmax(-1)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-7, equal_nan=True)
    assert y.isnan().all(-1).tolist() == [True, False, True, True] + 5 * [False]
    assert (y[4, 500], y[1, -1]) == (0, 1)
    # A GPU divides to two units in the last place.
    torch.testing.assert_close(y[8].cpu(), torch.full((600,), 1 / 600), rtol=3e-7, atol=0)


def test_large_numbers_and_one_number_do_not_overflow(softmax):
    x = torch.tensor([[1e4, 1e4 - 1, -1e4], [80.0, 100.0, 120.0]])
    torch.testing.assert_close(softmax(x), x.softmax(-1))
    assert softmax(torch.full((7, 1), 300.0)).unique().tolist() == [1.0]
    assert softmax(torch.full((3, 1024), 6e4).half()).unique().tolist() == [2.0**-10]


def test_any_axis_layout_and_nothing(softmax):
    x = torch.randn(4, 70, 3)
    for dim in (0, 1, 2, -2):
        torch.testing.assert_close(softmax(x, dim), x.softmax(dim))
    strided = torch.randn(40, 90)[::2, ::3].t()
    torch.testing.assert_close(softmax(strided), strided.softmax(-1))
    assert [softmax(torch.empty(s)).shape for s in [(0, 5), (5, 0)]] == [(0, 5), (5, 0)]


def test_gradients_are_torch_s(softmax):
    for shape in [(6, 50), (3, 1500)]:
        x = torch.randn(shape, requires_grad=True)
        dy = torch.randn(shape).t().contiguous().t()  # not contiguous
        (found,) = torch.autograd.grad(softmax(x), x, dy)
        (expected,) = torch.autograd.grad(x.softmax(-1), x, dy)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
        assert found.sum(-1).abs().max() < 1e-5


def test_what_it_does_not_take_is_refused(softmax):
    for x, dim in [(torch.ones(2).double(), -1), (torch.ones(2, 2), 2), (torch.tensor(1.0), 0)]:
        with pytest.raises(ConfigError, match="expected float32, bfloat16 or float16 and an axis"):
            softmax(x, dim)
