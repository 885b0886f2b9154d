"""Where Triton kernels run: on the GPU, or without one in Triton's interpreter.

The interpreter has to be asked for before Triton is imported, and then holds for a whole process;
so without a GPU these tests run in a process of their own, which `test_in_interpreter.py` starts.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

HERE = Path(__file__).parent
IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1"
NAN, INF = float("nan"), float("inf")
INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


@pytest.fixture
def triton() -> None:
    """Skips where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton: pip install 'mase-chop[triton]'")


@pytest.fixture
def device(triton: None) -> Iterator[str]:
    """The device type for kernels; skips where neither a GPU nor the interpreter is there."""
    if not IN_INTERPRETER and not torch.cuda.is_available():
        pytest.skip("no GPU; test_in_interpreter.py runs this test in Triton's interpreter")
    with np.errstate(all="ignore"):  # the interpreter computes with numpy, which tells of overflow
        yield "cpu" if IN_INTERPRETER else "cuda"


@pytest.fixture
def floats() -> Callable[..., Tensor]:
    """Tensors of a shape with ordinary numbers, any bits at all, and the edges of float32."""

    def make(*shape: int, any_bits: bool = True) -> Tensor:
        x = torch.randn(shape).flatten() * torch.randn(shape).flatten().mul(3).exp()
        if any_bits:
            bits = torch.randint(-(2**31), 2**31, x[::3].shape).int()
            x[::3] = bits.view(torch.float32)
        edges = torch.tensor(
            [0.0, -0.0, NAN, INF, -INF, -1e-45, 1e-40, 2.0**-126, 3.4028235e38, -3.4e38, 0.5, -2.5]
        )
        count = min(edges.numel(), x.numel())
        x[:count] = edges[:count]
        return x.view(shape)

    return make


@pytest.fixture
def same_bits() -> Callable[[Tensor, Tensor], None]:
    """Asserts that dtype, shape and bits agree; one NaN is like another."""

    def check(y: Tensor, expected: Tensor) -> None:
        y, expected = y.cpu(), expected.cpu()
        assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
        integers = INTEGERS[y.dtype]
        same = (y.view(integers) == expected.view(integers)) | (y.isnan() & expected.isnan())
        assert same.all(), (y[~same][:5], expected[~same][:5])

    return check


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what runs on a GPU where there is one."""
    for item in items:
        if "device" in getattr(item, "fixturenames", ()) and HERE in item.path.parents:
            item.add_marker("gpu")
