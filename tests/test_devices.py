"""Formats and quantized modules compute where their tensors are.

Without a GPU the other device is `meta`, whose tensors have no numbers, and which refuses tensors
of the CPU as a GPU does; what depends on numbers cannot be asked there.
"""

import copy
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from chop.formats import MXInt, QuantSpec, ScaleInteger
from tests.formats.examples import EXAMPLES as FORMATS
from tests.nn.test_quantized import EXAMPLES as OPERATORS
from tests.nn.test_quantized import example
from tests.subcases import subcases

BY_NUMBERS = (".item() cannot be called on meta", "register_meta function for torch.nonzero")
FIRST = [examples[0] for examples in FORMATS.values()]


@pytest.fixture(params=["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """A device that is not the CPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return request.param


def agrees(y, expected, tolerance=0.0):
    """Shape and dtype are those of the CPU's result; on a GPU the numbers too."""
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    if y.device.type == "cuda":
        torch.testing.assert_close(y.cpu(), expected, rtol=tolerance, atol=tolerance)
    else:
        assert y.device.type == "meta"


@contextmanager
def unless_of_numbers(device):
    """Ends what a `meta` tensor cannot answer."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if device != "meta" or not any(text in str(error) for text in BY_NUMBERS):
            raise


@subcases("number_format", FIRST, ids=lambda x: x.label)
def test_formats_round_and_pass_gradients(device, number_format):
    x = torch.randn(6, 40, requires_grad=True)
    moved = x.detach().to(device).requires_grad_()
    with unless_of_numbers(device):
        agrees(number_format.saturates(moved), number_format.saturates(x))
        y, expected = number_format(moved), number_format(x)
        agrees(y, expected)
        y.sum().backward()
        expected.sum().backward()
        agrees(moved.grad, x.grad, 1e-6)


@subcases("number_format", FIRST, ids=lambda x: x.label)
def test_codes_are_decoded_where_they_are(device, number_format):
    if number_format.is_identity:
        pytest.skip("floats have no codes")
    x = torch.randn(6, 40)
    encoded = number_format.encode(x)
    parts = {name: getattr(encoded, name) for name in ("codes", "scales", "tensor_scale")}
    moved = {name: part.to(device) for name, part in parts.items() if part is not None}
    with unless_of_numbers(device):
        agrees(number_format.decode(replace(encoded, **moved)), number_format.decode(encoded))


@subcases("name", OPERATORS)
def test_quantized_modules_compute_there(device, name):
    module, x, twin = example(name)
    quantized = twin.from_float(module, QuantSpec.uniform(MXInt(8, block_size=4))).eval()
    moved = copy.deepcopy(quantized).to(device)
    agrees(moved(x.to(device)), quantized(x), 1e-4)
    learning = twin.from_float(module, QuantSpec.uniform(ScaleInteger(8))).train().to(device)
    with unless_of_numbers(device):
        y = learning(x.to(device))
        assert y.device.type == device
        if y.requires_grad:
            y.sum().backward()
        assert all(p.grad.device.type == device for p in learning.parameters())
