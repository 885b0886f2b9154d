"""Verification of an export: compares weights, and outputs on test rows, with the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chop.bench import outputs
from chop.errors import VerificationError
from chop.export.graphs.cache import PRESENT, cached_examples, has_cache, with_present
from chop.export.graphs.flat import RENAMED, output_tensors
from chop.export.packed_model import packed_layers
from chop.export.target import Runner, Target
from chop.formats import NumberFormat, QuantSpec
from chop.formats.static import is_dynamic
from chop.ir.graph import MaseGraph
from chop.ir.propagate import example_inputs
from chop.nn.quantized import QuantizedOperator
from chop.quantization.freezing import freeze_layers
from chop.train.feed import Feed
from chop.train.intervals import Score
from chop.train.model_io import LABELS, read_output
from chop.train.rows import Rows, rows_per_batch
from chop.train.task import Task
from chop.train.train_loop import EVALUATED
from chop.workloads.workload import Workload

MOST = 0.05
"""Largest difference of outputs, as a share of the largest output, for the same model."""
MOST_DYNAMIC = 0.5
"""Largest difference if layers compute the scales of their inputs. The last bit of a quotient then
selects one of two codes, and deep models amplify that up to the size of the rounding error.
"""


@dataclass(frozen=True)
class WeightProof:
    """Comparison of packed weights with those that a target's library decodes.

    Attributes:
        equal: number of weights that are equal, value by value.
        compared: number of weights that the library returns.
        count: number of packed weights.
        difference: largest difference of a value; None if none was compared.
    """

    equal: int
    compared: int
    count: int
    difference: float | None

    def __str__(self) -> str:
        """Returns a text such as `14 of 14`."""
        missing = self.count - self.compared
        return f"{self.equal} of {self.compared}" + (f", {missing} not given" if missing else "")


@torch.no_grad()
def compare_weights(mg: MaseGraph, given: Mapping[str, Tensor]) -> WeightProof:
    """Compares the weight of every packed module of a graph.

    Args:
        mg: the exported graph.
        given: weights by module path, in the module's shape or transposed, see `Target.weights`.
    """
    equal, differences = 0, list[float]()
    layers = packed_layers(mg.model)
    for path, layer in layers.items():
        ours, theirs = layer.weight.double(), given.get(path)
        layouts = [] if theirs is None else _layouts(theirs, ours)
        distances = [_difference(x.double(), ours) for x in layouts if x.shape == ours.shape]
        if distances:
            equal += min(distances) == 0
            differences.append(min(distances))
    return WeightProof(equal, len(differences), len(layers), max(differences, default=None))


def _layouts(theirs: Tensor, ours: Tensor) -> list[Tensor]:
    """Returns the possible layouts of a library's weight, in the layer's shape if possible."""
    if ours.dim() != 2 or theirs.dim() < 2:
        return [theirs]
    rows = theirs.flatten(1)
    return [rows[:, : ours.size(1)], rows.T]


def _difference(actual: Tensor, expected: Tensor) -> float:
    return outputs.largest_difference([actual], [expected], "weight") or 0.0


@dataclass
class RowProof:
    """Comparison of an engine's outputs with its graph's on test rows, accumulated by batch.

    Attributes:
        agreed: number of answers with the same largest logit; None if answers are not classes.
        answers: number of compared answers: rows, tokens or pixels.
        difference: largest difference between answers.
        largest: largest absolute value of the graph's answers.
    """

    agreed: int | None = None
    answers: int = 0
    difference: float = 0.0
    largest: float = 0.0
    _predictions: list[Tensor] = field(default_factory=list, repr=False)
    _labels: list[Tensor] = field(default_factory=list, repr=False)

    def add(self, workload: Workload, logits: Tensor, expected: Tensor, labels: Tensor) -> None:
        """Adds the logits of a batch. Padding is ignored, since engines differ there.

        Raises:
            VerificationError: if the logits differ in shape from the graph's.
        """
        task = workload.task
        if logits.shape != expected.shape:
            raise VerificationError(f"expected logits {[*expected.shape]}, got {[*logits.shape]}.")
        answers, right = task.compare(logits, labels)
        own, _ = task.compare(expected, labels)
        self.answers += len(answers)
        self.difference = max(self.difference, _difference(answers, own))
        if own.numel():
            self.largest = max(self.largest, own.abs().max().item())
        if task.is_categorical:
            same = answers.argmax(-1) == own.argmax(-1)
            self.agreed = (self.agreed or 0) + int(same.sum())
            self.answers += same.numel() - len(answers)  # counts pixels of images
        predictions, expected = task.metric.read(answers, right)
        self._predictions.append(predictions)
        self._labels.append(expected)

    def score(self, workload: Workload, rows: int) -> Score:
        """Returns the task's metric of the engine."""
        return workload.compute_score(torch.cat(self._predictions), torch.cat(self._labels), rows)


@dataclass(frozen=True)
class Contestant:
    """Model whose outputs on test rows are compared.

    Attributes:
        name: name in tables.
        answers: function from inputs by name to outputs by name.
        reference: name of the model to compare with; its own name for none.
    """

    name: str
    answers: Runner
    reference: str


@torch.no_grad()
def compare_on_rows(
    contestants: Sequence[Contestant],
    mg: MaseGraph,
    workload: Workload,
    rows: Rows,
    advance: Callable[[float], None] = lambda share: None,
) -> dict[str, RowProof]:
    """Runs all models on the same batches of test rows.

    Args:
        contestants: models; a reference precedes those that are compared with it.
        mg: the graph, which defines the inputs.
        workload: the task.
        rows: test rows.
        advance: callback with the finished share of the rows.
    Returns: the comparison by name.

    Raises:
        VerificationError: if an engine lacks an output, or returns another shape.
    """
    proofs = {each.name: RowProof() for each in contestants}
    feed = Feed(mg.model, rows, 1, workload.task, "cpu")
    feed.batch_size = rows_per_batch(mg.model, rows, workload.task, EVALUATED)
    for step, (fed, labels) in enumerate(feed.batches()):
        inputs = {name: x for name, x in fed.items() if name != LABELS}
        read, logits = _reader(mg, inputs, workload.task, len(labels)), dict[str, Tensor]()
        for each in contestants:
            logits[each.name] = read(each.answers(inputs), each.name)
            proofs[each.name].add(workload, logits[each.name], logits[each.reference], labels)
        advance((step + 1) / feed.steps)
    return proofs


def _reader(
    mg: MaseGraph, inputs: Mapping[str, Any], task: Task, rows: int
) -> Callable[[Mapping[str, Tensor], str], Tensor]:
    """Returns a function from an engine's outputs by name, and its name, to its answers.

    It selects the same outputs that the task reads from the graph.
    """
    answer = mg.model(**inputs)
    tensors = output_tensors(answer)
    if task.read is None:
        logits = read_output(answer)[1]
        name = next(name for name, x in tensors.items() if x is logits)
        return lambda given, who: _named(given, name, who)
    paths = task.layout.names_among(answer, rows, tensors)
    return lambda given, who: torch.cat(
        [_named(given, path, who).reshape(rows, -1) for path in paths], 1
    )


def _named(given: Mapping[str, Tensor], name: str, who: str) -> Tensor:
    output = given.get(name, given.get(f"{name}{RENAMED}"))
    if output is None:
        raise VerificationError(f"{who}: expected the output '{name}', got {[*given]}.")
    return output


def exact_graph(mg: MaseGraph) -> MaseGraph:
    """Returns a graph that computes with decoded values, in torch's order of summation."""
    exact = mg.copy()
    exact.model.cpu().eval()
    freeze_layers(exact)
    return exact


@torch.no_grad()
def example_difference(exact: MaseGraph, run: Runner, kind: Target, most: float = MOST) -> float:
    """Returns the `largest_difference` of a file from its graph on the example inputs.

    For a file with a key-value cache, the inputs are a continued text and a new one. Keys and
    values are compared separately, since they can be much larger than the logits.

    Args:
        exact: see `exact_graph`.
        run: the file.
        kind: its target.
        most: share of the largest output that rounding can explain.
    """
    if not (kind.takes_cache and has_cache(exact)):
        example = example_inputs(exact.model, "cpu")
        expected = output_tensors(exact.model(**example))
        return largest_difference(run(example), expected, kind.name, most)
    off = 0.0
    for inputs in cached_examples(exact):
        given = run(inputs)
        expected = output_tensors(with_present(exact.model(**inputs)))
        for is_cache in (True, False):
            part = {k: x for k, x in expected.items() if k.startswith(PRESENT) == is_cache}
            off = max(off, largest_difference(given, part, kind.name, most))
    return off


@torch.no_grad()
def check_unrounded(mg: MaseGraph, path: Path, kind: Target) -> None:
    """Compares a file with its graph, both without rounding of layer inputs.

    The wide bound `MOST_DYNAMIC` could accept a wrong layer; without codes of inputs the bound
    `MOST` applies.

    Raises:
        VerificationError: if outputs differ by more than the order of summation explains.
    """
    if kind.read_unrounded is None or largest_share(mg) == MOST:
        return
    plain = mg.copy()
    for module in plain.model.modules():
        if isinstance(module, QuantizedOperator):
            module.spec = module.spec.with_quantizers(data_in=QuantSpec().data_in)
    example_difference(exact_graph(plain), kind.read_unrounded(path), kind)


def largest_share(mg: MaseGraph) -> float:
    """Returns the share of the largest output by which rounding can change outputs."""
    inputs = (
        m.operand_format("data_in") for m in mg.model.modules() if isinstance(m, QuantizedOperator)
    )
    is_scaled_by_data = any(isinstance(x, NumberFormat) and is_dynamic(x) for x in inputs)
    return MOST_DYNAMIC if is_scaled_by_data else MOST


def largest_difference(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], name: str, most: float = MOST
) -> float:
    """Returns the largest difference over all outputs, including renamed ones.

    Files rename an output if an input has the same name.

    Args:
        actual: outputs of the target's library by name.
        expected: outputs of the graph.
        name: name of the target.
        most: share of the largest output that rounding can explain.

    Raises:
        VerificationError: if an output is missing, or differs by more than rounding explains.
        ConfigError: if one has another shape.
    """
    ours = [_named(actual, key, name) for key in expected]
    off = outputs.largest_difference(ours, [*expected.values()], name) or 0.0
    largest = max((x.abs().max().item() for x in expected.values() if x.numel()), default=0.0)
    if off > most * largest:
        raise VerificationError(
            f"{name}: outputs differ by {off:.2g} (largest output {largest:.2g}), more than "
            "rounding explains: do not use the file."
        )
    return off
