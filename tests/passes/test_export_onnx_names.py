"""Layers, parameters and inputs that torch's exporter cannot name in the code that it writes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from chop import MaseGraph, passes
from chop.export.graphs.flat import FlatGraph
from chop.export.graphs.plain_names import give_plain_names

NAMES = ("class", "graph", "meta", 'say "x"', "\ufb01", "a\\b")


class Named(nn.Module):
    """A child, one in a dict, and a parameter of one name; inputs that hide torch."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.layers = nn.ModuleDict()
        self.layers.add_module(name, nn.Linear(4, 4))
        self.scale = nn.Module()
        self.scale.register_parameter(name, nn.Parameter(torch.randn(4)))

    def forward(self, torch: Tensor, getattr: Tensor) -> Tensor:
        hidden = self.layers._modules[self.name](self._modules[self.name](torch))
        return hidden * self.scale._parameters[self.name] + getattr


def _graph(name: str) -> tuple[MaseGraph, dict[str, Tensor]]:
    given = {"torch": torch.randn(2, 4), "getattr": torch.randn(2, 4)}
    mg = MaseGraph(Named(name).eval(), dummy_in=given)
    mg, _ = passes.init_metadata_analysis_pass(mg)
    return passes.add_common_metadata_analysis_pass(mg, {"dummy_in": given})[0], given


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(3)
def test_a_plain_graph_module_can_name_every_member(name: str) -> None:
    mg, given = _graph(name)
    expected, keys = mg.model(**given), list(mg.model.state_dict())
    give_plain_names(mg)
    graph = fx.Graph()
    graph.output(graph.graph_copy(mg.fx_graph, {}))
    plain = fx.GraphModule(mg.model, graph)
    assert torch.equal(mg.model(**given), expected)
    assert not any(name in path.split(".") for path, _ in plain.named_parameters())
    assert len(plain.state_dict()) == len(keys)


def test_names_that_are_plain_stay() -> None:
    mg, _ = _graph("fc")
    before = [node.target for node in mg.nodes], list(mg.model.state_dict())
    give_plain_names(mg)
    assert ([node.target for node in mg.nodes], list(mg.model.state_dict())) == before


@pytest.mark.parametrize("name", ["class", "graph"])
def test_the_flat_graph_takes_such_inputs(name: str) -> None:
    mg, given = _graph(name)
    expected = mg.model(**given)
    flat = FlatGraph(mg, given)
    assert list(flat.inputs) == ["torch", "getattr"]
    assert torch.equal(flat.module(*flat.inputs.values())[0], expected)
