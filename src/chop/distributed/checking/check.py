"""Node-by-node check of a sharded model against a single process with one module in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from chop.base.nested import tree_children, tree_map, tree_rebuild
from chop.captured.module import CapturedModule
from chop.captured.nodes.writes import mutated_names, shared_writes
from chop.captured.runtime import REGIONS
from chop.distributed.checking.agreement import (
    agreed,
    broadcast_from_first,
    check_same_inputs,
    this_device,
)
from chop.distributed.checking.difference import (
    Allowed,
    Difference,
    difference,
    largest_magnitude,
    list_tensors,
    rounding_error,
)
from chop.distributed.checking.reference import ReferenceRunner
from chop.distributed.layouts import chunk_groups, get_local, get_piece
from chop.distributed.peers import is_peer_failure
from chop.distributed.plan import named_tensors
from chop.distributed.runtime import same_memory
from chop.errors import ConfigError, DistributedError, GraphError, PlanError, first_line
from chop.ir.propagate import GraphRunner, bind_inputs
from chop.kernels.matmul_precision import matmul_precision
from chop.nn.quantized import QuantizedOperator

if TYPE_CHECKING:
    from chop.distributed.source import TensorSource

TOLERANCE = 1e-5
FREE = 1e3
"""Tolerances allowed for the final outputs of a model without rounding."""


@dataclass(frozen=True)
class CheckReport:
    """Differences of a sharded model from a single process.

    Attributes:
        max_difference: largest difference of a node's value, relative to the largest magnitude of
            that value, without elements that were rounded to another value.
        nodes: number of compared nodes.
        flips: largest number of elements of a node that were rounded to another value.
        final_difference: relative difference of the outputs of a complete run. Differences of nodes
            accumulate, and may be a step of the format in a quantized model.
    """

    max_difference: float
    nodes: int
    flips: int
    final_difference: float


def check_against_one_process(
    before: CapturedModule,
    sharded: CapturedModule,
    inputs: Mapping[str, Any],
    tolerance: float = TOLERANCE,
    source: TensorSource | None = None,
) -> CheckReport:
    """Compares each node of a sharded model with a single process. Called on all processes.

    The reference is a node of the original model, run on plain, whole tensors. The sharded node
    gets the reference's inputs in the layout of the sharded model, so each node is judged by
    itself. Inserted nodes have to return their input in any layout. At the end the whole sharded
    model runs, and its outputs are compared.

    A node passes if each element differs by at most `tolerance` times the largest magnitude of the
    reference, plus the rounding error of its inputs. Integers and booleans have to be equal. In a
    quantized node, 2 % of the elements plus four may have any value. Plain tensors, such as those
    that `parallelize_module` leaves between modules, may be the whole value or this process's
    `torch.chunk` of it along one dimension.

    The check does not detect faults that these inputs do not show, such as a tensor scale that is
    equal for every chunk. It does not compare non-tensor numbers, only tensors computed from them.
    It does not detect wrongly loaded tensors if the reference gathers them from the sharded model.

    Args:
        before: the model before sharding, with the same node names. Tensors on the meta device are
            fetched for one module at a time and then freed, so no process needs the whole model.
        sharded: the model in `eval()`, with DTensors as parameters.
        inputs: plain, whole tensors by name, equal on every process. Small ones suffice.
        tolerance: relative tolerance for float32; coarser dtypes may differ by four rounding steps.
        source: source of tensors on the meta device; None gathers them.
    Returns: the differences, equal on every process.

    Raises:
        DistributedError: on every process, naming the first node that differs, or if inputs differ
            between processes. If a node raises on some processes, the others notice when these end
            (see `guarded`).
        ConfigError: if the model is in training mode.
        GraphError: if the sharded graph lacks nodes of the original one.
        PlanError: if the model has no sharded parameter.
    """
    if sharded.training or before.training:
        raise ConfigError("expected models in evaluation mode: call model.eval() first.")
    check_same_inputs(inputs)
    with torch.no_grad(), matmul_precision("highest"), _restored_state(before, sharded):
        comparison = _Comparison(before, sharded, tolerance, source)
        report, expected = comparison.run(inputs)
        final = comparison.compare_outputs(sharded(**inputs), expected)
    if final.wrong:
        raise DistributedError(
            f"the sharded model's output differs from one process's {final.wrong}, although each "
            "node by itself is correct."
        )
    return replace(report, final_difference=final.relative)


class _Comparison:
    """Parallel runs of the original and the sharded model."""

    def __init__(
        self,
        before: CapturedModule,
        sharded: CapturedModule,
        tolerance: float,
        source: TensorSource | None,
    ) -> None:
        self._groups = chunk_groups(sharded)
        if not self._groups:
            raise PlanError("expected a sharded model, got one without DTensors as parameters.")
        self._twins = _twins(before.graph, sharded.graph)
        self._model, self._tolerance = sharded, tolerance
        self._reference = ReferenceRunner(before, sharded, source, this_device())
        self._sharded = GraphRunner(sharded)

    def run(self, inputs: Mapping[str, Any]) -> tuple[CheckReport, Any]:
        """Runs and compares all nodes; also returns the reference's output."""
        given = iter(bind_inputs(self._model, inputs))
        worst, output = Difference(), None
        for node in self._model.graph.nodes:
            twin = self._twins.get(node.name)
            if node.op == "placeholder":
                # Graphs may write into their inputs.
                value = next(given)
                self._sharded.env[node] = _copied(value)
                self._reference.env[self._twins[node.name]] = _copied(value)
            else:
                worst = worst.joined(agreed(self._visit(node, twin)))
            if worst.wrong:
                raise DistributedError(self._message(node, worst.wrong))
            if twin is not None and twin.op == "output":
                output = self._reference.env[twin]
            _free(self._sharded, node)
            _free(self._reference, twin)
        return CheckReport(worst.relative, len(self._twins), worst.flips, math.nan), output

    def _visit(self, node: fx.Node, twin: fx.Node | None) -> Difference:
        env, reference = self._sharded.env, self._reference.env
        if twin is not None and node.target in REGIONS:
            # Entering a region, such as autocast, affects both runs.
            reference[twin] = env[node] = self._sharded.run_node(node)
            return Difference()
        if node.target is same_memory:
            # Values are replaced one by one here, which separates views from their base.
            env[node] = env[node.all_input_nodes[0]]
            return Difference()
        device = this_device()
        if twin is not None:
            # Both runs draw the same random numbers.
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                reference[twin] = self._reference.run_node(twin)
        origin = self._origin(node)
        allowed = self._allowed(origin) if twin is origin else Allowed(self._tolerance)
        # The reference of the first process applies to all. This detects replicated tensors that
        # differ between processes.
        expected = tree_map(broadcast_from_first, reference[origin])
        env[node] = self._run_sharded(node)
        result = difference(env[node], expected, allowed, self._groups)
        # Later nodes read the reference's value. A reordered sum that rounds to another code here
        # would otherwise change them.
        if not result.wrong:
            env[node] = self._forced(env[node], expected)
        if twin is not None and shared_writes(twin):
            self._force_all()
        return result

    def _force_all(self) -> None:
        """Resets all values after a write, since views of the written tensor have changed."""
        for node, value in self._sharded.env.items():
            origin = self._origin(node)
            if origin in self._reference.env:
                expected = tree_map(broadcast_from_first, self._reference.env[origin])
                self._sharded.env[node] = self._forced(value, expected)

    def _run_sharded(self, node: fx.Node) -> Any:
        try:
            return self._sharded.run_node(node)
        except Exception as error:
            if is_peer_failure(error):
                raise
            # Raised at once, because the other processes may already wait for this one.
            said = f"it raises {type(error).__name__}: {first_line(error).rstrip('.')}"
            raise DistributedError(self._message(node, said)) from error

    def _origin(self, node: fx.Node) -> fx.Node:
        """Returns the original node of a value, which inserted nodes pass on."""
        while node.name not in self._twins:
            node = node.all_input_nodes[0]
        return self._twins[node.name]

    def _allowed(self, twin: fx.Node) -> Allowed:
        module = self._model.get_submodule(str(twin.target)) if twin.op == "call_module" else None
        held = [x for read in twin.all_input_nodes for x in list_tensors(self._reference.env[read])]
        own = [] if module is None else list(module.parameters())
        error = rounding_error([*held, *own, *list_tensors(self._reference.env[twin])])
        largest = max((largest_magnitude(x) for x in held if x.is_floating_point()), default=0.0)
        return Allowed(max(self._tolerance, error), error * largest, _rounds(module))

    def compare_outputs(self, actual: Any, expected: Any) -> Difference:
        """Returns the difference of the outputs; any difference passes if the model rounds."""
        expected = tree_map(broadcast_from_first, expected)
        relative = FREE * max(self._tolerance, rounding_error(list_tensors(expected)))
        relative = math.inf if _rounds(self._model) else relative
        return agreed(difference(actual, expected, Allowed(relative), self._groups))

    def _forced(self, actual: Any, expected: Any) -> Any:
        """Returns the reference's value in the layout of the sharded one."""
        if isinstance(expected, Tensor) and isinstance(actual, Tensor):
            piece = get_piece(expected, actual, self._groups)
            return actual if piece is None else piece.value
        parts, wholes = tree_children(actual), tree_children(expected)
        if not parts or not wholes:
            return actual
        forced = {key: self._forced(part, wholes[key]) for key, part in parts.items()}
        return tree_rebuild(actual, forced)

    def _message(self, node: fx.Node, wrong: str) -> str:
        callee = str(node.target)
        if node.op == "call_module":
            callee += f": {type(self._model.get_submodule(callee)).__name__}"
        elif node.op == "call_function":
            callee = getattr(node.target, "__name__", callee)
        is_new = "" if node.name in self._twins else ", inserted by the plan"
        return (
            f"node '{node.name}' ({node.op} {callee}{is_new}) is the first that differs from one "
            f"process: {wrong}."
        )


@contextmanager
def _restored_state(before: CapturedModule, sharded: nn.Module) -> Iterator[None]:
    """Restores parameters and buffers that the graph writes."""
    names = set(mutated_names([before.graph]))
    tensors = [
        x for model in (before, sharded) for path, x in named_tensors(model) if path in names
    ]
    local = [get_local(x) for x in tensors if not x.is_meta]
    contents = [x.clone() for x in local]
    try:
        yield
    finally:
        for x, content in zip(local, contents, strict=True):
            x.copy_(content)


def _twins(before: fx.Graph, sharded: fx.Graph) -> dict[str, fx.Node]:
    """Returns the original nodes by name, in the order of the sharded graph."""
    twins = {node.name: node for node in before.nodes}
    names = [node.name for node in sharded.nodes if node.name in twins]
    if names != list(twins):
        lost = next((name for name in twins if name not in names), None)
        reason = f"'{lost}' is missing" if lost else "the nodes are in another order"
        raise GraphError(f"expected the original nodes in the sharded graph, but {reason}.")
    return twins


def _free(runner: GraphRunner, done: fx.Node | None) -> None:
    """Frees the values that no later node reads."""
    for read in runner.user_to_last_uses.get(done, ()) if done is not None else ():
        runner.env.pop(read, None)


def _copied(value: Any) -> Any:
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, value)


def _rounds(module: nn.Module | None) -> bool:
    """Returns whether a module or one of its submodules rounds to a number format."""
    modules = [] if module is None else list(module.modules())
    return any(isinstance(m, QuantizedOperator) and not m.spec.is_float for m in modules)
