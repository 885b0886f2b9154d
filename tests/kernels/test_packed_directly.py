"""Products past the dispatcher are the operator's, and are left to it where somebody looks."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chop.formats import Float, parse_format_string
from chop.kernels import packed_linear_directly
from tests.subcases import subcases


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def arguments(name, shape=(320, 224)):
    stored_in = parse_format_string(name)
    stored = stored_in.encode(torch.randn(shape))
    parts = (stored.codes, stored.scales, stored.tensor_scale)
    return Float().key, *parts, list(shape), stored_in.key


@subcases("name", ["mxint:width=8", "mxint:width=4", "8.auto"])
@subcases("lead", [(1, 1), (3,), (2, 5), (40,)])
def test_the_same_bits_as_the_operator(name, lead):
    x, bias = torch.randn(*lead, 224), torch.randn(320)
    name = "8.6" if name == "8.auto" else name
    for given in (None, bias):
        packed = arguments(name)
        direct = packed_linear_directly(x, *packed, given)
        assert direct.shape == (*lead, 320)
        assert torch.equal(direct, torch.ops.chop.packed_linear(x, *packed, given, False))
        decoded = torch.ops.chop.decode(*packed[1:], x.dtype)
        exact = torch.nn.functional.linear(x, decoded, given)
        torch.testing.assert_close(direct, exact, rtol=2e-2, atol=2e-1)


def test_modes_and_gradients_see_the_operator():
    packed, x = arguments("mxint:width=8"), torch.randn(2, 224)
    with Seen() as seen:
        packed_linear_directly(x, *packed, None)
    assert "chop.packed_linear.default" in seen.calls
    learned, bias = x.clone().requires_grad_(), torch.zeros(320, requires_grad=True)
    packed_linear_directly(learned, *packed, bias).sum().backward()
    decoded = torch.ops.chop.decode(*packed[1:], x.dtype)
    torch.testing.assert_close(learned.grad, decoded.sum(0).expand(2, -1))
    assert torch.equal(bias.grad, torch.full((320,), 2.0))
    packed_linear_directly(x, *packed, bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((320,), 4.0))
