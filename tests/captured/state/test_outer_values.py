"""Values that a model's code reads outside of its tensors, changed after the capture."""

from __future__ import annotations

import copy
import os
import pickle
import types
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.captured.state.outer_values import OuterValueWarning
from chop.captured.state.preserve_state import preserve_state

SCALE = 2.0
TABLE = {"scale": 2.0}
MISSING_KEYS: defaultdict[str, float] = defaultdict(lambda: 2.0)


@dataclass
class Settings:
    scale: float = 2.0


class Registry(dict[str, float]):
    """A dictionary whose methods take other arguments, and which has attributes."""

    scale = 2.0

    def get(self, owner: Any) -> float:  # type: ignore[override]
        return super().get(type(owner).__name__, self.scale)

    def values(self, owner: Any) -> list[float]:  # type: ignore[override]
        return [self.get(owner)]

    items = keys = values  # type: ignore[assignment]


class Attributes(dict[str, Any]):
    """A dictionary whose keys are attributes; with a tensor in it, it is compared key by key."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


SETTINGS = Settings()
REGISTRY = Registry()
ATTRIBUTES = Attributes(scale=2.0, row=torch.ones(4))


def closures() -> tuple[Callable[[Any, Tensor], Tensor], Callable[[float], None]]:
    scale = 2.0

    def forward(self: Any, x: Tensor) -> Tensor:
        return x * scale

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    return forward, change


FROM_CLOSURE, CHANGE_CLOSURE = closures()


class Base(nn.Module):
    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.own = 2.0
        self.rows = [2.0]
        self.settings = types.SimpleNamespace(scale=2.0)
        self.calls = 0


def set_global(name: str, value: Any) -> Callable[[nn.Module], None]:
    return lambda model: globals().__setitem__(name, value)


CASES: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[Any], Any], str]] = {
    "a global": (lambda self, x: x * SCALE, set_global("SCALE", 5.0), "SCALE"),
    "a default": (
        lambda self, x: x * MISSING_KEYS["x"],
        lambda m: MISSING_KEYS.update(x=5.0),
        "MISSING_KEYS",
    ),
    "an object": (
        lambda self, x: x * SETTINGS.scale,
        lambda m: setattr(SETTINGS, "scale", 5.0),
        "SETTINGS.scale",
    ),
    "a mapping of its own methods": (
        lambda self, x: x * REGISTRY.get(self),
        lambda m: REGISTRY.update({type(m).__name__: 5.0}),
        "REGISTRY",
    ),
    "an attribute of a mapping": (
        lambda self, x: x * REGISTRY.scale,
        lambda m: setattr(REGISTRY, "scale", 5.0),
        "REGISTRY.scale",
    ),
    "a key that is an attribute": (
        lambda self, x: x * ATTRIBUTES.scale,
        lambda m: ATTRIBUTES.update(scale=5.0),
        "ATTRIBUTES.scale",
    ),
    "a closure": (FROM_CLOSURE, lambda m: CHANGE_CLOSURE(5.0), "scale"),
    "the environment": (
        lambda self, x: x * float(os.environ.get("CHOP_TEST_SCALE", "2")),
        lambda m: os.environ.update(CHOP_TEST_SCALE="5"),
        "CHOP_TEST_SCALE",
    ),
    "a class": (
        lambda self, x: x * self.factor,
        lambda m: setattr(type(m), "factor", 5.0),
        "Model.factor",
    ),
    "an attribute": (lambda self, x: x * self.own, lambda m: setattr(m, "own", 5.0), "Model.own"),
    "a namespace": (
        lambda self, x: x * self.settings.scale,
        lambda m: setattr(m.settings, "scale", 5.0),
        "Model.settings.scale",
    ),
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts back what a test changes."""
    monkeypatch.setitem(globals(), "SCALE", SCALE)
    monkeypatch.setitem(MISSING_KEYS, "unused", 0.0)
    monkeypatch.setitem(MISSING_KEYS, "x", 2.0)
    for settings in (SETTINGS, REGISTRY):
        monkeypatch.setattr(settings, "scale", 2.0)
    REGISTRY.clear()
    ATTRIBUTES["scale"] = 2.0
    monkeypatch.setenv("CHOP_TEST_SCALE", "2")
    CHANGE_CLOSURE(2.0)


def captured(forward: Callable[[Any, Tensor], Tensor]) -> tuple[nn.Module, MaseGraph, Tensor]:
    cls = type("Model", (Base,), {"forward": lambda self, x: forward(self, self.linear(x))})
    torch.manual_seed(0)
    model, x = cls().eval(), torch.randn(3, 4)
    return model, MaseGraph(model, dummy_in={"x": x}), x


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_a_value_that_changes_after_the_capture_is_said(name: str) -> None:
    forward, change, label = CASES[name]
    model, mg, x = captured(forward)
    rules = {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}
    quantized, _ = passes.quantize_transform_pass(mg, rules)
    graphs = (mg.model, quantized.model, copy.deepcopy(mg.model))
    with warnings.catch_warnings():
        warnings.simplefilter("error", OuterValueWarning)
        before = [graph(x) for graph in graphs]
    change(model)
    for graph, old in zip(graphs, before, strict=True):
        with pytest.warns(OuterValueWarning, match=f"{label}.* capture the model again"):
            assert torch.equal(graph(x), old)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OuterValueWarning)
        assert torch.equal(pickle.loads(pickle.dumps(mg.model))(x), before[0])
        assert torch.equal(MaseGraph(model, dummy_in={"x": x}).model(x), model(x))


def test_an_attribute_that_is_set_on_the_graph_is_said() -> None:
    _, mg, x = captured(lambda self, x: x * self.own * self.factor)
    for name in ("own", "factor"):
        setattr(mg.model, name, 5.0)
        with pytest.warns(OuterValueWarning, match=f"{name} was set on the graph"):
            mg.model(x)
        delattr(mg.model, name)


def test_running_a_graph_leaves_what_its_model_reads() -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * TABLE["scale"] * SETTINGS.scale

    captured = MaseGraph(Reads(), dummy_in={"x": torch.ones(2)}).model
    with preserve_state(captured, thorough=True):
        TABLE["noted"] = 1.0
        SETTINGS.scale = 3.0
    try:
        assert TABLE["noted"] == 1.0 and SETTINGS.scale == 3.0
    finally:
        del TABLE["noted"]
        SETTINGS.scale = 2.0
