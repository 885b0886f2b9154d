"""Gradient modes of a model, which end where the caller's mode was."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph
from chop.passes import quantize_transform_pass

_INPUT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


Compute = Callable[["_Regions", Tensor], Tensor]


class _Regions(nn.Module):
    """Two linear layers, of which a region holds the first."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.kept = torch.no_grad()
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def _within(region: Callable[[], AbstractContextManager[object]]) -> Callable[..., Tensor]:
    def compute(model: _Regions, x: Tensor) -> Tensor:
        with region():
            hidden = model.first(x)
        return model.second(hidden)

    return compute


def _nested(model: _Regions, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = model.first(x)
        with torch.enable_grad():
            hidden = model.second(hidden)
        hidden = model.first(hidden)
    return hidden + model.second(x)


def _decorated(model: _Regions, x: Tensor) -> Tensor:
    hidden: Tensor = torch.no_grad()(model.first)(x)
    return model.second(torch.set_grad_enabled(False)(torch.tanh)(model.first(hidden)))


def _kept(model: _Regions, x: Tensor) -> Tensor:
    with model.kept:
        x = model.first(x)
    y = model.second(x)
    with model.kept:
        return y + model.first(y)


def _entered_twice(model: _Regions, x: Tensor) -> Tensor:
    off = torch.set_grad_enabled(False)
    with off:
        x = model.first(x)
    y = model.second(x)
    with off:
        y = y + model.first(y)
    return model.second(y)


def _switched_for_good(model: _Regions, x: Tensor) -> Tensor:
    x = model.second(x)
    torch.set_grad_enabled(False)
    return x + model.first(x)


_COMPUTED = {
    "no_grad": _within(torch.no_grad),
    "enable_grad": _within(torch.enable_grad),
    "set_grad_enabled(False)": _within(lambda: torch.set_grad_enabled(False)),
    "set_grad_enabled(True)": _within(lambda: torch.set_grad_enabled(True)),
    "nested": _nested,
    "decorated": _decorated,
    "kept": _kept,
    "entered twice": _entered_twice,
    "for good": _switched_for_good,
}


def _gradients(model: nn.Module, outside: bool) -> list[Tensor | None]:
    """The output, and the gradients of the weights, where the output has any."""
    weights = list(model.parameters())
    with torch.set_grad_enabled(outside):
        output = model(_INPUT)
        # A graph leaves the caller's mode as it was, also where its model does not.
        assert isinstance(model, _Regions) or torch.is_grad_enabled() is outside
    if not output.requires_grad:
        return [output.detach()]
    gradients = torch.autograd.grad(output.sum(), weights, allow_unused=True)
    return [output.detach(), *gradients]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("name", _COMPUTED)
def test_gradients_are_those_of_the_model(name: str, outside: bool, tmp_path: Path) -> None:
    model = _Regions(_COMPUTED[name])
    mg = MaseGraph(copy.deepcopy(model), dummy_in={"x": _INPUT})
    mg.export(tmp_path / "regions.mz")
    loaded = MaseGraph.from_checkpoint(tmp_path / "regions.mz")
    expected = _gradients(model, outside)
    for graph in (mg, loaded):
        found = _gradients(graph.model, outside)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_a_region_is_kept_by_passes_and_by_the_compiler() -> None:
    mg = MaseGraph(_Regions(_COMPUTED["nested"]), dummy_in={"x": _INPUT})
    widths = dict.fromkeys(("weight_width", "data_in_width", "bias_width"), 8)
    fractions = dict.fromkeys(("weight_frac_width", "data_in_frac_width", "bias_frac_width"), 4)
    config = {"name": "integer", **widths, **fractions}
    quantized, _ = quantize_transform_pass(mg, {"by": "type", "default": {"config": config}})
    for outside in (True, False):
        found = _gradients(quantized.model, outside)
        expected = _gradients(mg.model, outside)
        assert [one is None for one in found] == [one is None for one in expected]
    compiled = torch.compile(mg.model, backend="eager", fullgraph=True)
    for outside in (True, False):
        for one, other in zip(
            _gradients(compiled, outside), _gradients(mg.model, outside), strict=True
        ):
            torch.testing.assert_close(one, other)


def test_regions_without_gradients_leave_no_nodes() -> None:
    def compute(model: _Regions, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = torch.arange(1, 5).float().amax() * (x > 0)
        return model.first(x) * scale

    mg = MaseGraph(_Regions(compute), dummy_in={"x": _INPUT})
    assert not [node for node in mg.nodes if "grad" in str(node.target)]


def _scaled(model: _Regions, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().amax()
    return model.first(x) * scale


def _stopped(model: _Regions, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = torch.tanh(x * 2)
    return model.first(x)


def _stopped_in_part(model: _Regions, x: Tensor) -> Tensor:
    kept = x.sin()
    with torch.no_grad():
        fixed = kept * 2
        with torch.enable_grad():
            free = x.cos()
    return model.first(kept * fixed + free)


@pytest.mark.parametrize("compute", [_scaled, _stopped, _stopped_in_part])
def test_regions_around_inputs_alone_stop_the_gradients_of_inputs(compute: Compute) -> None:
    model = _Regions(compute)
    mg = MaseGraph(copy.deepcopy(model), dummy_in={"x": _INPUT})
    found = []
    for module in (model, mg.model, copy.deepcopy(mg.model)):
        x = _INPUT.clone().requires_grad_()
        found.append(torch.autograd.grad(module(x).sum(), x, allow_unused=True)[0])
    assert (found[0] is None) == (compute is _stopped)
    for gradient in found[1:]:
        assert (gradient is None) == (found[0] is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, found[0])
