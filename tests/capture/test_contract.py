"""What a captured graph promises to its caller: the same modes, the same forms, no side effects."""

import pytest
import torch
from torch import nn

from chop import MaseGraph
from chop.errors import GuardError


class Made(nn.Module):
    """A module whose forward is given."""

    def __init__(self, call, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)
        self.call = call

    def forward(self, x):
        return self.call(self, x)


def gradients_by_mode(module, x):
    with torch.set_grad_enabled(module.training):
        y = module.linear(x)
    return y * 2


def test_a_call_leaves_the_gradient_mode_as_it_was():
    model = Made(gradients_by_mode, linear=nn.Linear(4, 4))
    mg = MaseGraph(model, dummy_in={"x": torch.randn(3, 4)})
    x = torch.randn(2, 4, requires_grad=True)
    for mode in (False, True):
        out = mg.model.train(mode)(x)
        assert torch.is_grad_enabled()
        assert torch.equal(out, model.train(mode)(x))
        assert out.requires_grad == model(x).requires_grad
    with torch.no_grad():
        mg.model(x)
        assert not torch.is_grad_enabled()


def test_an_error_inside_a_region_does_not_leave_gradients_off():
    def call(module, x):
        with torch.no_grad():
            scale = module.linear(x).mean()
        return module.linear(x) * scale

    mg = MaseGraph(Made(call, linear=nn.Linear(4, 4)), dummy_in={"x": torch.randn(3, 4)})
    with pytest.raises(RuntimeError):
        mg.model(torch.randn(3, 4, dtype=torch.float64))
    assert torch.is_grad_enabled()


def test_modules_that_the_model_freezes_stay_frozen(tmp_path):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.linear = nn.Linear(4, 4)

        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

        def forward(self, x):
            return self.linear(self.norm(x))

    model = Frozen()
    mg = MaseGraph(model, dummy_in={"x": torch.randn(3, 4)})
    mg.export(tmp_path / "frozen")
    for graph in (mg, mg.copy(), MaseGraph.from_checkpoint(tmp_path / "frozen")):
        graph.model.eval().train()
        before = graph.model.norm.running_mean.clone()
        x = torch.randn(8, 4)
        assert torch.equal(graph.model(x), model.train()(x))
        assert torch.equal(graph.model.norm.running_mean, before)
        assert graph.model.linear.training


@pytest.mark.parametrize(
    ("example", "wrong", "message"),
    [
        (torch.randn(3, 4), torch.randn(2, 3, 4), "x as a tensor with 2 dimensions, got shape"),
        (torch.randn(3, 4), 1.0, "x as a tensor with 2 dimensions, got 1.0"),
        ([torch.randn(3, 4)] * 2, [torch.randn(3, 4)] * 3, "x as 2 values"),
        ({"a": torch.randn(3, 4)}, {"b": torch.randn(3, 4)}, "x as the keys a"),
    ],
)
def test_inputs_of_another_form_are_refused(example, wrong, message):
    def call(module, x):
        parts = list(x.values()) if isinstance(x, dict) else x if isinstance(x, list) else [x]
        return sum(parts[1:], parts[0])

    mg = MaseGraph(Made(call), dummy_in={"x": example})
    assert torch.equal(mg.model(example), call(None, example))
    with pytest.raises(GuardError, match=message):
        mg.model(wrong)


def test_plain_inputs_are_part_of_the_capture():
    class Scaled(nn.Module):
        def forward(self, x, scale):
            return x * scale

    x = torch.randn(3, 4)
    mg = MaseGraph(Scaled(), dummy_in={"x": x, "scale": 2.0})
    assert torch.equal(mg.model(x, scale=2.0), x * 2)
    with pytest.raises(GuardError, match="scale as 2.0, got 3.0"):
        mg.model(x, scale=3.0)


def test_the_callers_example_is_not_written_into():
    x = torch.randn(3, 4)
    kept = x.clone()
    mg = MaseGraph(Made(lambda module, x: x.add_(1) * 2), dummy_in={"x": x}, strict=True)
    assert torch.equal(x, kept)
    assert torch.equal(mg.model(kept.clone()), (kept + 1) * 2)


def test_graphs_with_decisions_on_data_are_stored_and_still_check_them(tmp_path):
    def call(module, x):
        return x * 2 if x.sum() > 0 else x - 1

    x = torch.ones(3, 4)
    with pytest.warns(UserWarning, match="decisions"):
        mg = MaseGraph(Made(call), dummy_in={"x": x})
    mg.export(tmp_path / "decides")
    again = MaseGraph.from_checkpoint(tmp_path / "decides", allow=[Made])
    assert torch.equal(again.model(x), x * 2)
    with pytest.raises(GuardError, match="reads True"):
        again.model(-x)
