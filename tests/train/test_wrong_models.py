"""Models and labels that cannot be used are named by their cause."""

import pytest
import torch
from torch import nn

import chop
from chop.actions.sweep.settings import QuantizeSweepConfig
from chop.errors import ChopError
from chop.train import evaluate, find_task, fit

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


class Complex(Net):
    def forward(self, x):
        return torch.fft.fft(self.layer(x))


class Forgetful(Net):
    def forward(self, x):
        self.layer(x)


COLUMNS = {**{name: X[:, i] for i, name in enumerate("abcd")}, "label": Y}
CALLS = {
    "complex": (lambda: evaluate(Complex(), (X, Y)), "returns real numbers, got torch.complex64"),
    "complex in training": (lambda: fit(Complex(), (X, Y)), "real numbers, got torch.complex64"),
    "none": (lambda: chop.quantize(Forgetful(), data=X), "its forward returns None"),
    "test rows beside": (lambda: evaluate(Net(), (X, Y, X, Y)), "test=.X_test, y_test"),
    "columns": (lambda: evaluate(Net(), COLUMNS), "pass a pandas frame, or .X, y. of arrays"),
    "from minus one": (
        lambda: find_task("classification").check_labels(Y - 1),
        "classes begin at -1, add 1 to the labels; otherwise, .* Remove rows",
    ),
    "no rows": (lambda: evaluate(Net(), (X[:0], Y[:0])), "at least one row, got 0 rows"),
    "used iterator": (
        lambda: chop.quantize(Net(), data=iter(())),
        "empty or already consumed iterator",
    ),
    "class": (
        lambda: chop.MaseGraph(Net()).to_module(like=Net),
        "like: expected an nn.Module, got the class Net; pass an instance",
    ),
    "width": (
        lambda: QuantizeSweepConfig(widths="0,4", qat_epochs=0),
        "width: got 0, expected 1 to 32",
    ),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
def test_the_cause_is_named(call, message):
    with pytest.raises(ChopError, match=message):
        call()


def test_weights_that_are_cut_off_say_so(tmp_path):
    from safetensors.torch import save_file

    from chop.models.weights import load_weights

    path = tmp_path / "net.safetensors"
    save_file(Net().state_dict(), path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ChopError, match="cannot be read as safetensors .*; it may be cut off"):
        load_weights(Net(), path)
