"""Comparison of an integer graph with its quantized graph, operator by operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from chop.errors import ConfigError
from chop.integer.grids import AnyGrid
from chop.integer.steps import Codes, Step
from chop.ir.annotate import tensors_in
from chop.ir.batches import observe_nodes
from chop.ir.graph import MaseGraph
from chop.kernels.matmul_precision import matmul_precision
from chop.nn.integer import Grid

LABELS = "labels"


@dataclass
class StepRecord:
    """Comparison of an operator; the fields are the keys of the pass's info rows.

    Attributes:
        name: node name.
        kind: operator name.
        low: proven lower bound of the result's codes, before requantization.
        high: proven upper bound.
        bits: width for both bounds.
        codes: number of compared codes, in all formats that read the result. Outputs of the model
            are compared as real numbers.
        different: number of different codes.
        largest: largest difference in steps of the reader; for blocks, in steps of the finest.
        saturated: number of results outside the range of a format that reads them.
        seen: largest magnitude of a result's code.
    """

    name: str
    kind: str
    low: int
    high: int
    bits: int
    codes: int = 0
    different: int = 0
    largest: float = 0.0
    saturated: int = 0
    seen: int = 0


@matmul_precision("highest")
def compare(
    lowered: MaseGraph, steps: Sequence[Step], batches: Iterable[Mapping[str, Any]]
) -> list[StepRecord]:
    """Runs an integer graph and compares each operator with its reference on the same inputs.

    Args:
        lowered: the integer graph.
        steps: its operators.
        batches: inputs by name.
    Raises:
        GuardError: if a batch has other sizes than the graph.
    """
    order = {node.name: place for place, node in enumerate(lowered.nodes)}
    records = [_record(step) for step in steps]
    ready: dict[str, list[int]] = {}
    needed: dict[str, str] = {}
    for number, step in enumerate(steps):
        names = [step.result.node.name, *(node.name for node, _ in step.readers)]
        last = max(names, key=order.__getitem__)
        ready.setdefault(last, []).append(number)
        for name in (*names, *(given.node.name for given in step.inputs)):
            needed[name] = max(last, needed.get(name, last), key=order.__getitem__)
    values: dict[str, Any] = {}

    def visit(node: fx.Node, env: Mapping[fx.Node, Any], result: Any) -> None:
        if node.name in needed:
            values[node.name] = result
        for number in ready.get(node.name, ()):
            _add(records[number], steps[number], values)
        for name in [name for name in values if needed[name] == node.name]:
            del values[name]

    observe_nodes(lowered, _checked(lowered, batches), visit, follows_padding=False)
    return records


def _checked(mg: MaseGraph, batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for batch in batches:
        mg.model.check_inputs(batch)
        yield batch


def _record(step: Step) -> StepRecord:
    edge = step.result.proven
    return StepRecord(step.name, step.kind, edge.low, edge.high, edge.bits)


def _add(record: StepRecord, step: Step, values: Mapping[str, Any]) -> None:
    expected = step.reference(*(_real(given, step, values) for given in step.inputs))
    codes = values[step.result.node.name]
    record.seen = max(record.seen, int(codes.abs().max()))
    for node, grid in step.readers:
        _note(record, values[node.name] - grid.codes(expected))
        record.saturated += _beyond(expected, grid)
    if step.is_decoded:
        edge = step.result.proven
        difference = edge.decode(codes).to(expected.dtype) - expected
        _note(record, difference / edge.by_channel(edge.step).to(expected.dtype))


def _beyond(x: Tensor, grid: AnyGrid) -> int:
    """Counts the values more than half a step outside the range of an integer grid."""
    if isinstance(grid, Grid) and grid.rounding in ("sign", "threshold"):
        return 0
    steps, ends = x.double() / grid.step, grid.edge
    return int(((steps > ends.high + 0.5) | (steps < ends.low - 0.5)).sum())


def _note(record: StepRecord, steps: Tensor) -> None:
    record.codes += steps.numel()
    record.different += int((steps != 0).sum())
    record.largest = max(record.largest, float(steps.abs().max()))


def _real(given: Codes, step: Step, values: Mapping[str, Any]) -> Tensor:
    value: Tensor = values[given.node.name]
    return value if given.edge is None else given.edge.decode(value).to(step.dtype)


@matmul_precision("highest")
def accuracy(mg: MaseGraph, batches: Iterable[Mapping[str, Any]]) -> float | None:
    """Returns the top-1 accuracy; None without class labels.

    Args:
        mg: the graph.
        batches: inputs by name and, as `labels`, the class of each row.
    Raises:
        ConfigError: if the number of labels differs from the number of rows.
    """
    right = rows = 0
    inputs = {str(node.target) for node in mg.nodes if node.op == "placeholder"}
    for batch in batches:
        labels = batch.get(LABELS)
        with torch.no_grad():
            logits = next(tensors_in(mg.model(**{k: x for k, x in batch.items() if k in inputs})))
        if labels is None or labels.is_floating_point():
            return None
        if logits.dim() != 2 or labels.dim() != 1:
            return None
        if len(labels) != len(logits):
            raise ConfigError(f"batches.labels: got {len(labels)} for {len(logits)} rows.")
        right += int((logits.argmax(-1) == labels).sum())
        rows += len(labels)
    return right / rows if rows else None


def compare_outputs(
    integer: MaseGraph,
    quantized: MaseGraph,
    batch: Mapping[str, Any],
    whole: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compares the real outputs of an integer graph with those of the quantized graph.

    Args:
        integer: the integer graph.
        quantized: the graph from which it was lowered.
        batch: inputs by name; extra entries are ignored.
        whole: inputs of the quantized graph, if the integer graph is a step of a decoder.
    Returns: the number of compared `outputs`, the number of `different` ones, and the `largest`
        difference.
    """
    compared = different = 0
    largest = 0.0
    expected = _outputs(quantized, batch if whole is None else whole)
    for mine, other in zip(_outputs(integer, batch), expected, strict=True):
        distance = (mine - other.reshape(mine.shape)).abs()
        compared += distance.numel()
        different += int((distance != 0).sum())
        largest = max(largest, float(distance.max()))
    return {"outputs": compared, "different": different, "largest": largest}


def _outputs(mg: MaseGraph, batch: Mapping[str, Any]) -> list[Tensor]:
    names = {str(node.target) for node in mg.nodes if node.op == "placeholder"}
    given = {name: x for name, x in batch.items() if name in names}
    with torch.no_grad():
        return [x for x in tensors_in(mg.model(**given)) if x.is_floating_point()]
