"""Exports of models that keep state from call to call, and of inputs that have to fit together."""

import pytest
import torch
from torch import nn

from chop import MaseGraph, passes
from chop.errors import GraphError
from chop.export import pt2
from tests.onnx_runs import run


class Total(nn.Module):
    """Adds up its results in a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        y = self.layer(x)
        self.total += y.detach().mean(0)
        return y + self.total


class Average(Total):
    """Keeps a moving average, which stands still where each call has the same mean."""

    def forward(self, x):
        y = self.layer(x)
        self.total.lerp_(torch.zeros(4), 0.1)
        return y + self.total


class Position(Total):
    """Reads a table at the place where the last call ended."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, 8))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        y = self.layer(x) * self.table[self.at]
        self.at.add_(len(x)).remainder_(8)
        return y


class Toggle(Total):
    """Changes the sign of every other result."""

    def __init__(self):
        super().__init__()
        self.register_buffer("flag", torch.tensor([False]))

    def forward(self, x):
        y = torch.where(self.flag, self.layer(x), -self.layer(x))
        self.flag.logical_not_()
        return y


class Steps(nn.Module):
    """Counts its calls in an attribute."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * self.steps


class Inner(nn.Module):
    """A model whose leaf counts."""

    def __init__(self):
        super().__init__()
        self.layer, self.leaf = nn.Linear(4, 4), Steps()

    def forward(self, x):
        return self.leaf(self.layer(x))


class Scratch(Total):
    """Overwrites its buffer before it reads it."""

    def forward(self, x):
        self.total.copy_(self.layer(x).mean(0))
        return x + self.total


class Calls(Total):
    """Counts its calls in a buffer that no output depends on."""

    def forward(self, x):
        self.total += 1
        return self.layer(x)


def captured(cls):
    torch.manual_seed(0)
    return MaseGraph(cls().eval(), dummy_in={"x": torch.randn(3, 4)})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cls", [Total, Average, Position, Toggle, Inner])
@pytest.mark.filterwarnings("ignore::chop.captured.record.CaptureWarning")
def test_a_file_that_would_lose_state_is_refused(cls, tmp_path):
    mg = captured(cls)
    before = {name: x.clone() for name, x in mg.model.state_dict().items()}
    with pytest.raises(GraphError, match=r"keeps state between calls in its (tensors|attributes)"):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "m.onnx"})
    with pytest.raises(GraphError, match="keeps state between calls"):
        pt2.write(mg, tmp_path / "m.pt2", "pt2")
    assert not [*tmp_path.iterdir()]
    for name, x in mg.model.state_dict().items():
        torch.testing.assert_close(x, before[name], rtol=0, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("cls", [Scratch, Calls])
def test_a_buffer_without_a_past_is_exported(cls, tmp_path):
    mg = captured(cls)
    with pytest.warns(UserWarning, match="does not update total"):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "m.onnx"})
    for seed in (1, 2):
        torch.manual_seed(seed)
        x = torch.randn(5, 4)
        found = run(tmp_path / "m.onnx", x=x)
        with torch.no_grad():
            torch.testing.assert_close(found, mg.model(x=x), rtol=1e-5, atol=1e-5)


class Scattered(nn.Module):
    """Puts features in the place of masked tokens, as models that see do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask, features):
        chosen = mask[..., None].expand_as(x)
        return self.layer(x).masked_scatter(chosen, features)


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 2])
def test_a_mask_as_an_input_keeps_the_number_of_its_elements(rows, tmp_path):
    torch.manual_seed(0)
    mask = torch.tensor([[True, False, False], [False, False, True]])[:rows]
    example = {"x": torch.randn(rows, 3, 4), "mask": mask, "features": torch.randn(rows, 4)}
    mg = MaseGraph(Scattered().eval(), dummy_in=example)
    passes.export_onnx_interface_pass(mg, {"path": tmp_path / "m.onnx"})
    other = {**example, "x": torch.randn(rows, 3, 4), "mask": mask.roll(1, 1)}
    found = run(tmp_path / "m.onnx", **other)
    with torch.no_grad():
        torch.testing.assert_close(found, mg.model(**other), rtol=1e-5, atol=1e-5)


class Chosen(nn.Module):
    """Takes as many rows as its numbers say."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, counts):
        return self.layer(torch.repeat_interleave(x, counts, 0, output_size=4))


@pytest.mark.filterwarnings("ignore::chop.captured.record.CaptureWarning")
def test_inputs_that_do_not_fit_one_another_are_one_sentence(tmp_path):
    mg = MaseGraph(
        Chosen().eval(), dummy_in={"x": torch.randn(3, 4), "counts": torch.tensor([0, 3, 1])}
    )
    with pytest.raises(GraphError, match="the graph fails on random inputs with the shapes"):
        passes.export_onnx_interface_pass(mg, {"path": tmp_path / "m.onnx"})
