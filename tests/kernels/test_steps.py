"""Recorded steps: torch's own results for other inputs, and operations that cannot be recorded."""

import ctypes

import pytest
import torch
import torch.nn.functional as F

from chop.kernels.cpu import build, steps
from chop.kernels.cpu.steps import StepRecorder, UnsupportedStepError
from tests.subcases import subcases

ROW = torch.randn(1, 3, 40, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(40, 24, generator=torch.Generator().manual_seed(1))
NORM = (40,), WEIGHT[:, 0], WEIGHT[:, 1]
FUNCTIONS = {
    "elements": lambda x: (x.exp().sin() + x.cos().tanh() - 2) * x.sigmoid() / (1 + x * x),
    "activations": lambda x: torch.cat((F.silu(x), F.relu(x), F.gelu(x), x**3), -1),
    "approximate gelu": lambda x: F.gelu(x, approximate="tanh"),
    "broadcast": lambda x: x.transpose(1, 2) * x[:, :1].transpose(1, 2) + x.mean(-1)[:, None, :],
    "norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "layer norm": lambda x: F.layer_norm(x, *NORM),
    "products": lambda x: torch.bmm(F.linear(x, WEIGHT.t(), WEIGHT[0]), x[:, :, :24].mT),
    "in place": lambda x: x.neg().add_(x[:, :1]).mul_(3).div_(7),
    "halves": lambda x: torch.cat((-x[..., 20:], x[..., :20]), -1).unflatten(-1, (2, 20)).clone(),
}


@pytest.fixture(autouse=True)
def _loops():
    if build.library().library is None:
        pytest.skip(build.library().detail)


@subcases("name", FUNCTIONS)
def test_steps_follow_their_inputs(name):
    x, function = ROW.clone(), FUNCTIONS[name]
    recorder = StepRecorder([x])
    with torch.no_grad(), recorder:
        y = function(x)
    torch.testing.assert_close(y, function(ROW))
    x.copy_(2 * ROW.flip(2))
    recorder.finish().run([], [], 1, 0)
    torch.testing.assert_close(y, function(x), atol=2e-6, rtol=1e-5)


def test_attention_reads_the_cache():
    heads, groups, size, position = 2, 3, 20, 5
    query, key, value = (torch.randn(1, n, 1, size) for n in (heads * groups, heads, heads))
    recorder = StepRecorder([query, key, value])
    with torch.no_grad(), recorder:
        y = torch.ops.chop.attend(query, key, value, 0, 0.3)
    keys, values = torch.randn(2, 1, heads, 9, size)
    before = keys.clone()
    recorder.finish().run([keys.data_ptr()], [values.data_ptr()], 9, position)
    assert torch.equal(keys[:, :, position], key[:, :, 0])
    assert torch.equal(keys[:, :, position + 1 :], before[:, :, position + 1 :])
    seen = [x[:, :, : position + 1] for x in (keys, values)]
    expected = F.scaled_dot_product_attention(query, *seen, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(y, expected.transpose(1, 2), atol=1e-6, rtol=1e-5)


@subcases(
    "function, reason",
    [
        (lambda x: x.cumsum(-1), "aten::cumsum is not supported"),
        (lambda x: x.mean(1), "over the last dimension only"),
        (lambda x: x.double() + 1, "of torch.float64|in torch.float64"),
        (lambda x: torch.zeros_like(ROW).add_(x), "writes to a constant"),
        (lambda x: x.sum().item(), "is not supported"),
        (lambda x: 1 - x, "is not supported"),
        (lambda x: x @ torch.zeros(40, 4096), "a large layer is not packed"),
        (lambda x: x > 0 if (x > 0).any() else x, "aten::gt is not supported"),
        (lambda x: x ** x[0, 0, 0].div(x[0, 0, 0]).mul(2), "power of"),
        (lambda x: torch.mul(ROW, 2, out=x), "aten::mul writes to a constant"),
    ],
)
def test_other_operations_are_named(function, reason):
    x = ROW.clone()
    with pytest.raises(UnsupportedStepError, match=reason), torch.no_grad(), StepRecorder([x]):
        function(x)


def test_weights_are_read_again_and_never_written():
    x, weight = ROW.clone(), WEIGHT.clone()
    recorder = StepRecorder([x], [weight])
    with torch.no_grad(), recorder:
        y = x * (1 + weight[:, 0])
    weight.data.mul_(3)
    recorder.finish().run([], [], 1, 0)
    torch.testing.assert_close(y, x * (1 + weight[:, 0]))
    recorder = StepRecorder([x], [weight])
    refused = pytest.raises(UnsupportedStepError, match="writes to a constant")
    with refused, torch.no_grad(), recorder:
        weight.add_(x[0, 0, :1])


def test_empty_parts_and_values_that_are_not_finite():
    x = ROW.clone()
    recorder = StepRecorder([x])
    with torch.no_grad(), recorder:
        empty = x[:0] * 2 + 1
        y = torch.cat((F.relu(x), x.exp()), -1)
    x[0, 0, :6] = torch.tensor([torch.nan, torch.inf, -torch.inf, 88.7, 89.0, -104.0])
    recorder.finish().run([], [], 1, 0)
    assert empty.shape == (0, 3, 40)
    expected = torch.cat((F.relu(x), x.exp()), -1)
    torch.testing.assert_close(y, expected, equal_nan=True, rtol=1e-5, atol=2e-6)


def test_a_library_of_another_version_is_refused(monkeypatch):
    steps._loops.cache_clear()
    with monkeypatch.context() as changes:
        changes.setattr(steps, "_Step", ctypes.c_int32)
        with pytest.raises(UnsupportedStepError, match="of another version; restart Python"):
            StepRecorder([])
    assert StepRecorder([]).finish().kinds["attend"] == 21
