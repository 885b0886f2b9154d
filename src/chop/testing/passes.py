"""Laws of passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from chop.errors import ConfigError
from chop.ir.graph import MaseGraph
from chop.passes import PASSES
from chop.private.torch_api import tree_leaves
from chop.testing.laws import obeys

UNKNOWN = "key_that_no_pass_has"


@dataclass(frozen=True)
class Given:
    """Pass with its graph, inputs and settings."""

    name: str
    mg: MaseGraph
    inputs: Mapping[str, Any]
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        """Name of the pass, for messages."""
        return self.name

    def run(self, **more: Any) -> tuple[MaseGraph, dict[str, Any]]:
        """Runs the pass with additional settings."""
        return PASSES[self.name](self.mg, {**self.settings, **more} if more else self.settings)

    def outputs(self, mg: MaseGraph) -> Any:
        """Returns the outputs of a model, whose state is preserved."""
        with torch.no_grad():
            torch.manual_seed(0)
            return copy.deepcopy(mg.model)(**self.inputs)


def check_pass(
    name: str,
    mg: MaseGraph,
    inputs: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Checks a pass on a graph by all laws, like chop's own passes.

    Args:
        name: name in `chop.passes.PASSES`.
        mg: graph to run the pass on. An analysis pass annotates it.
        inputs: arguments of the model by name, for comparing outputs.
        settings: settings of the pass. Default: none.
    Raises:
        AssertionError: if a law is broken; the message names it.

    Example:
        >>> inputs = {"input": torch.ones(1, 4)}
        >>> mg = MaseGraph(torch.nn.Linear(4, 2), dummy_in=inputs)
        >>> check_pass("add_common_metadata_analysis_pass", mg, inputs)
    """
    assert isinstance(name, str), f"expected the name of a pass, got {name!r:.60}"
    assert isinstance(mg, MaseGraph), f"{name}: expected a MaseGraph, got {type(mg).__name__}"
    given = Given(name, mg, inputs, dict(settings or {}))
    laws: list[Callable[[Given], None]] = [
        _it_is_registered_by_its_name,
        _the_graph_takes_the_inputs,
        _it_returns_a_graph_and_findings,
        _the_settings_stay_as_they_were,
        _an_unknown_key_is_refused,
    ]
    if name.endswith("_transform_pass"):
        laws += [
            _the_given_graph_stays_as_it_was,
            _it_gives_the_same_graph_again,
            _the_new_graph_is_written_and_read,
        ]
    elif name.endswith("_analysis_pass"):
        laws.append(_an_analysis_changes_no_output)
    for law in laws:
        obeys(law, given)


def same(first: Any, second: Any) -> bool:
    """Returns whether nested tensors are equal, with NaN equal to NaN."""
    left, right = tree_leaves(first), tree_leaves(second)
    return len(left) == len(right) and all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(left, right, strict=True)
    )


def _it_is_registered_by_its_name(given: Given) -> None:
    """Pipelines and commands find a pass by name."""
    assert given.name in PASSES, "no pass of that name; is it defined under @graph_pass?"
    assert PASSES[given.name].__name__ == given.name


def _the_graph_takes_the_inputs(given: Given) -> None:
    """The inputs of the check fit the graph before the pass."""
    given.outputs(given.mg)


def _it_returns_a_graph_and_findings(given: Given) -> None:
    """A pass returns a graph and a dictionary of results, and is recorded in the graph."""
    result = given.run()
    assert isinstance(result, tuple) and len(result) == 2, f"got {type(result).__name__}"
    graph, info = result
    assert isinstance(graph, MaseGraph) and isinstance(info, dict)
    assert graph.provenance[-1].name == given.name


def _the_settings_stay_as_they_were(given: Given) -> None:
    """A pass does not change the caller's settings."""
    before = copy.deepcopy(given.settings)
    given.run()
    assert given.settings == before, f"they were {before} and are {given.settings}"


def _an_unknown_key_is_refused(given: Given) -> None:
    """A misspelled setting raises an error."""
    try:
        given.run(**{UNKNOWN: 1})
    except ConfigError as error:
        assert UNKNOWN in str(error), f"the error does not name the key: {error}"
    else:
        raise AssertionError("settings with an unknown key were accepted")


def _the_given_graph_stays_as_it_was(given: Given) -> None:
    """A transform pass works on a copy."""
    mg = given.mg
    code, state = mg.model.code, copy.deepcopy(mg.model.state_dict())
    before = given.outputs(mg)
    graph, _ = given.run()
    assert graph is not mg
    assert mg.model.code == code, "the code of the given graph has changed"
    assert same(mg.model.state_dict(), state), "parameters or buffers have changed"
    assert same(given.outputs(mg), before), "the outputs of the given graph have changed"


def _an_analysis_changes_no_output(given: Given) -> None:
    """An analysis pass annotates the given graph and does not change the model."""
    before = given.outputs(given.mg)
    graph, _ = given.run()
    assert same(given.outputs(graph), before), "the outputs of the graph have changed"


def _it_gives_the_same_graph_again(given: Given) -> None:
    """A second run with the same random numbers gives the same graph."""
    graphs = []
    for _ in range(2):
        torch.manual_seed(0)
        graphs.append(given.run()[0])
    assert graphs[0].model.code == graphs[1].model.code
    assert same(given.outputs(graphs[0]), given.outputs(graphs[1]))


def _the_new_graph_is_written_and_read(given: Given) -> None:
    """A checkpoint of the new graph gives the same outputs."""
    graph, _ = given.run()
    with TemporaryDirectory() as folder:
        graph.export(Path(folder) / "model")
        read = MaseGraph.from_checkpoint(Path(folder) / "model")
    assert same(given.outputs(read), given.outputs(graph))
