"""The switch of torch for products of float32: what it allows, and that it is put back."""

from functools import partial

import pytest
import torch

from chop.errors import ConfigError
from chop.kernels.matmul_precision import allows_bfloat16, matmul_precision

CPU, GPU = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul
WAYS = {
    "nothing": (lambda: None, False),
    "highest": (lambda: torch.set_float32_matmul_precision("highest"), False),
    "high": (lambda: torch.set_float32_matmul_precision("high"), False),
    "medium": (lambda: torch.set_float32_matmul_precision("medium"), True),
    "CPUs alone": (partial(setattr, CPU, "fp32_precision", "bf16"), True),
    "GPUs alone": (partial(setattr, GPU, "fp32_precision", "tf32"), False),
}


def state():
    return CPU.fp32_precision, GPU.fp32_precision


@pytest.fixture(autouse=True)
def switch():
    before = CPU.fp32_precision, GPU.fp32_precision
    yield
    torch.set_float32_matmul_precision("highest")
    CPU.fp32_precision, GPU.fp32_precision = before


@pytest.mark.parametrize(("turn", "allowed"), WAYS.values(), ids=WAYS)
def test_every_way_of_setting_it_is_followed_and_put_back(turn, allowed):
    turn()
    before = state()
    whole = None if isinstance(turn, partial) else torch.get_float32_matmul_precision()
    assert allows_bfloat16() == allowed
    for inner, allows in (("highest", False), ("high", False), ("medium", True), (None, allowed)):
        with matmul_precision(inner):
            assert allows_bfloat16() == allows
            with matmul_precision("highest"):
                assert not allows_bfloat16() and GPU.fp32_precision in ("none", "ieee")
            assert allows_bfloat16() == allows
        assert state() == before
        with pytest.raises(KeyError), matmul_precision(inner):
            raise KeyError
        assert state() == before
    assert whole is None or torch.get_float32_matmul_precision() == whole


def test_other_names_are_refused():
    with pytest.raises(ConfigError, match="matmul precision 'mediun'.*'medium'"):
        matmul_precision("mediun").__enter__()
