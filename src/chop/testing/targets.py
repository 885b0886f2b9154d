"""Laws of export targets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from chop.actions.export.proof import (
    compare_weights,
    exact_graph,
    example_difference,
    largest_share,
)
from chop.errors import ConfigError, VerificationError
from chop.export.target import Target, Written
from chop.export.targets import TARGETS
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs
from chop.nn.quantized import QuantizedOperator
from chop.testing.laws import obeys


@dataclass(frozen=True)
class Case:
    """Export target with a graph."""

    name: str
    mg: MaseGraph

    @property
    def label(self) -> str:
        """Name of the target, for messages."""
        return self.name

    @property
    def target(self) -> Target:
        """The target."""
        return TARGETS[self.name]

    def export(self, folder: str) -> Written:
        """Writes the graph into a folder."""
        return self.target.export(self.mg, Path(folder) / self.target.stem)


def check_target(name: str, mg: MaseGraph, refused: MaseGraph | None = None) -> None:
    """Checks an export target by all applicable laws, as `chop export` checks its files.

    Args:
        name: name in `chop.export.targets.TARGETS`.
        mg: supported graph with example inputs, packed as by `chop export`.
        refused: graph with an unsupported layer. Default: not checked.
    Raises:
        AssertionError: if a law is broken; the message names it.
        UnavailableError: if a library required by the target is not installed.

    Example:
        >>> inputs = {"input": torch.ones(1, 4)}
        >>> mg = MaseGraph(torch.nn.Linear(4, 2), dummy_in=inputs)
        >>> check_target("onnx", mg)  # doctest: +SKIP
    """
    laws: list[Callable[[Case], None]] = [
        _it_is_registered_by_its_name,
        _it_holds_what_it_does_not_refuse,
        _the_given_graph_stays_as_it_was,
        _outputs_of_the_file_are_those_of_the_graph,
        _weights_of_the_file_are_those_of_the_graph,
    ]
    if name in TARGETS:
        TARGETS[name].require()
    for law in laws:
        obeys(law, Case(name, mg))
    if refused is not None:
        obeys(_a_refusal_writes_nothing, Case(name, refused))


def _it_is_registered_by_its_name(case: Case) -> None:
    """`--to` finds a target by its name."""
    assert case.name in TARGETS, "no target of that name"


def _it_holds_what_it_does_not_refuse(case: Case) -> None:
    """A graph without refusals is written to the requested place."""
    refusals = case.target.refusals(case.mg)
    assert not refusals, f"it rejects layers of the graph: {refusals}"
    with TemporaryDirectory() as folder:
        written = case.export(folder)
        assert written.path.suffix == case.target.suffix, f"it wrote {written.path.name}"
        assert written.files, "it wrote no files"
        for file in written.files:
            assert file.is_file() and Path(folder) in file.parents, f"there is no file {file}"


def _the_given_graph_stays_as_it_was(case: Case) -> None:
    """Exporting changes neither the code nor the tensors of the graph."""
    code, state = case.mg.model.code, copy.deepcopy(case.mg.model.state_dict())
    with TemporaryDirectory() as folder:
        case.export(folder)
    now = case.mg.model.state_dict()
    assert case.mg.model.code == code, "the code of the graph has changed"
    assert now.keys() == state.keys() and all(torch.equal(now[k], x) for k, x in state.items())


def _outputs_of_the_file_are_those_of_the_graph(case: Case) -> None:
    """The library returns outputs by name, close to those of the graph, in repeated calls."""
    mg = case.mg
    layers = [each for each in mg.model.modules() if isinstance(each, QuantizedOperator)]
    exact = exact_graph(mg) if any("weight" in each.operands for each in layers) else mg
    with TemporaryDirectory() as folder, torch.no_grad():
        run = case.target.read(case.export(folder).path)
        outputs = run(example_inputs(mg.model, "cpu"))
        assert isinstance(outputs, Mapping), (
            f"expected outputs by name, got {type(outputs).__name__}"
        )
        for _ in range(2):
            try:
                example_difference(exact, run, case.target, largest_share(mg))
            except VerificationError as error:
                raise AssertionError(str(error)) from error


def _weights_of_the_file_are_those_of_the_graph(case: Case) -> None:
    """The library decodes each packed weight to the values of the graph."""
    if case.target.weights is None:
        return
    with TemporaryDirectory() as folder:
        proof = compare_weights(case.mg, case.target.weights(case.export(folder).path))
    is_equal = proof.equal == proof.compared or bool(case.target.weight_cause)
    assert is_equal, f"{proof} weights are equal; the largest difference is {proof.difference}"


def _a_refusal_writes_nothing(case: Case) -> None:
    """An unsupported layer is named in the error, and no file is written."""
    refusals = case.target.refusals(case.mg)
    assert refusals, "it rejects no layer of this graph"
    with TemporaryDirectory() as folder:
        try:
            case.export(folder)
        except ConfigError as error:
            for layer in refusals:
                assert layer in str(error), f"the error does not name '{layer}': {error}"
        else:
            raise AssertionError(f"it wrote layers that it should reject: {refusals}")
        files = [path.name for path in Path(folder).rglob("*") if path.is_file()]
        assert not files, f"it has left files behind: {files}"
