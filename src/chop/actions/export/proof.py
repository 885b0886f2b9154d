"""Proof of an export: weights code by code, and outputs on test rows, as an engine has them."""

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
"""Of the largest output: beyond it the file is another model."""
MOST_DYNAMIC = 0.5
"""The same where layers find scales of their inputs: the last bit of a quotient then picks one of
two codes, and deep models amplify it, to as much as the rounding itself changes them."""


@dataclass(frozen=True)
class WeightProof:
    """Packed weights beside those that a target's library decodes.

    Attributes:
        equal: how many are, value by value.
        compared: how many the library gives.
        count: of packed weights.
        difference: the largest one of a value; None where none was compared.
    """

    equal: int
    compared: int
    count: int
    difference: float | None

    def __str__(self) -> str:
        """Such as `14 of 14`."""
        missing = self.count - self.compared
        return f"{self.equal} of {self.compared}" + (f", {missing} not given" if missing else "")


@torch.no_grad()
def compare_weights(mg: MaseGraph, given: Mapping[str, Tensor]) -> WeightProof:
    """Compares the weight of every packed module of a graph.

    Args:
        mg: the graph that was written.
        given: by path of a module, of its shape or transposed, see `Target.weights`.
    """
    equal, differences = 0, list[float]()
    layers = packed_layers(mg.model)
    for path, layer in layers.items():
        ours, theirs = layer.weight.double(), given.get(path)
        ways = [] if theirs is None else _ways(theirs, ours)
        found = [_apart(x.double(), ours) for x in ways if x.shape == ours.shape]
        if found:
            equal += min(found) == 0
            differences.append(min(found))
    return WeightProof(equal, len(differences), len(layers), max(differences, default=None))


def _ways(theirs: Tensor, ours: Tensor) -> list[Tensor]:
    """How a library may have laid a weight out, in the layer's shape where that is possible."""
    if ours.dim() != 2 or theirs.dim() < 2:
        return [theirs]
    rows = theirs.flatten(1)
    return [rows[:, : ours.size(1)], rows.T]


def _apart(found: Tensor, expected: Tensor) -> float:
    return outputs.largest_difference([found], [expected], "weight") or 0.0


@dataclass
class RowProof:
    """Outputs of an engine on test rows, as they come, beside those of its graph.

    Attributes:
        agreed: answers whose largest logit is the graph's; None where answers are no classes.
        answers: that were compared: rows, tokens or pixels.
        difference: the largest one between answers.
        largest: of the graph's answers.
    """

    agreed: int | None = None
    answers: int = 0
    difference: float = 0.0
    largest: float = 0.0
    _predictions: list[Tensor] = field(default_factory=list, repr=False)
    _labels: list[Tensor] = field(default_factory=list, repr=False)

    def add(self, workload: Workload, found: Tensor, expected: Tensor, labels: Tensor) -> None:
        """Takes the logits of a batch; of padding, which is no answer, an engine makes anything.

        Raises:
            VerificationError: logits have another shape than the graph's.
        """
        task = workload.task
        if found.shape != expected.shape:
            raise VerificationError(f"expected logits {[*expected.shape]}, got {[*found.shape]}.")
        answers, right = task.compare(found, labels)
        own, _ = task.compare(expected, labels)
        self.answers += len(answers)
        self.difference = max(self.difference, _apart(answers, own))
        if own.numel():
            self.largest = max(self.largest, own.abs().max().item())
        if task.is_categorical:
            same = answers.argmax(-1) == own.argmax(-1)
            self.agreed = (self.agreed or 0) + int(same.sum())
            self.answers += same.numel() - len(answers)  # each pixel of a picture is one
        predictions, expected = task.metric.read(answers, right)
        self._predictions.append(predictions)
        self._labels.append(expected)

    def score(self, workload: Workload, rows: int) -> Score:
        """The task's metric of the engine."""
        return workload.compute_score(torch.cat(self._predictions), torch.cat(self._labels), rows)


@dataclass(frozen=True)
class Contestant:
    """A model whose outputs on test rows are compared.

    Attributes:
        name: in tables.
        answers: inputs by name -> outputs by name.
        reference: the name of the model that it is compared with; its own compares with nothing.
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
        contestants: references are before those that are compared with them.
        mg: the graph, whose inputs are fed.
        workload: the task.
        rows: to run on.
        advance: takes the share of the rows that is done.
    Returns: by name.

    Raises:
        VerificationError: an engine has no output of that name, or of another shape.
    """
    found = {each.name: RowProof() for each in contestants}
    feed = Feed(mg.model, rows, 1, workload.task, "cpu")
    feed.batch_size = rows_per_batch(mg.model, rows, workload.task, EVALUATED)
    for step, (fed, labels) in enumerate(feed.batches()):
        inputs = {name: x for name, x in fed.items() if name != LABELS}
        read, logits = _reader(mg, inputs, workload.task, len(labels)), dict[str, Tensor]()
        for each in contestants:
            logits[each.name] = read(each.answers(inputs), each.name)
            found[each.name].add(workload, logits[each.name], logits[each.reference], labels)
        advance((step + 1) / feed.steps)
    return found


def _reader(
    mg: MaseGraph, inputs: Mapping[str, Any], task: Task, rows: int
) -> Callable[[Mapping[str, Tensor], str], Tensor]:
    """A function of the outputs of an engine by name, and the name of the engine, for its answers.

    The answers are what the task reads of the graph's outputs, here with those of the engine.
    """
    answer = mg.model(**inputs)
    tensors = output_tensors(answer)
    if task.read is None:
        logits = read_output(answer)[1]
        name = next(name for name, x in tensors.items() if x is logits)
        return lambda found, who: _named(found, name, who)
    paths = task.layout.names_among(answer, rows, tensors)
    return lambda found, who: torch.cat(
        [_named(found, path, who).reshape(rows, -1) for path in paths], 1
    )


def _named(found: Mapping[str, Tensor], name: str, who: str) -> Tensor:
    given = found.get(name, found.get(f"{name}{RENAMED}"))
    if given is None:
        raise VerificationError(f"{who}: expected the output '{name}', got {[*found]}.")
    return given


def exact_graph(mg: MaseGraph) -> MaseGraph:
    """A graph that computes with the values that codes stand for, in the order of sums of torch."""
    exact = mg.copy()
    exact.model.cpu().eval()
    freeze_layers(exact)
    return exact


@torch.no_grad()
def example_difference(exact: MaseGraph, run: Runner, kind: Target, most: float = MOST) -> float:
    """`largest_difference` of a file from its graph, on the graph's example inputs.

    Where the file has a cache these are a text that goes on and one that begins, and keys and
    values are compared apart, as they may be much larger than the logits.

    Args:
        exact: see `exact_graph`.
        run: the file.
        kind: its target.
        most: share of the largest output that rounding explains.
    """
    if not (kind.takes_cache and has_cache(exact)):
        example = example_inputs(exact.model, "cpu")
        expected = output_tensors(exact.model(**example))
        return largest_difference(run(example), expected, kind.name, most)
    off = 0.0
    for inputs in cached_examples(exact):
        found = run(inputs)
        expected = output_tensors(with_present(exact.model(**inputs)))
        for is_of_cache in (True, False):
            of = {k: x for k, x in expected.items() if k.startswith(PRESENT) == is_of_cache}
            off = max(off, largest_difference(found, of, kind.name, most))
    return off


@torch.no_grad()
def check_unrounded(mg: MaseGraph, path: Path, kind: Target) -> None:
    """Compares a file with its graph where neither rounds what layers are given.

    `MOST_DYNAMIC` would pass a wrong layer; without the codes that it allows for, `MOST` holds.

    Raises:
        VerificationError: outputs differ by more than sums in another order explain.
    """
    if kind.read_unrounded is None or largest_share(mg) == MOST:
        return
    plain = mg.copy()
    for module in plain.model.modules():
        if isinstance(module, QuantizedOperator):
            module.spec = module.spec.with_quantizers(data_in=QuantSpec().data_in)
    example_difference(exact_graph(plain), kind.read_unrounded(path), kind)


def largest_share(mg: MaseGraph) -> float:
    """The difference between outputs that rounding explains, as a share of the largest one."""
    inputs = (
        m.operand_format("data_in") for m in mg.model.modules() if isinstance(m, QuantizedOperator)
    )
    finds = any(isinstance(x, NumberFormat) and is_dynamic(x) for x in inputs)
    return MOST_DYNAMIC if finds else MOST


def largest_difference(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], name: str, most: float = MOST
) -> float:
    """Of all outputs; those that files call otherwise, since an input has the name, too.

    Args:
        found: outputs of the target's library by name.
        expected: outputs of the graph.
        name: of the target.
        most: share of the largest output that rounding explains.

    Raises:
        VerificationError: an output is missing, or differs by more than rounding explains.
        ConfigError: one has another shape.
    """
    ours = [_named(found, key, name) for key in expected]
    off = outputs.largest_difference(ours, [*expected.values()], name) or 0.0
    largest = max((x.abs().max().item() for x in expected.values() if x.numel()), default=0.0)
    if off > most * largest:
        raise VerificationError(
            f"{name}: outputs differ by {off:.2g} of {largest:.2g}, more than rounding explains: "
            "do not use the file."
        )
    return off
