"""Check: a sharded model beside one process, node by node, though no process holds it whole."""

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
    check_same_inputs,
    of_first_process,
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
"""Running by itself, a model that rounds nothing may end so many tolerances off."""


@dataclass(frozen=True)
class CheckReport:
    """How far a sharded model is from one process.

    Attributes:
        max_difference: the largest difference of a node's value, relative to the largest magnitude
            of that value; elements that were rounded to another value left out.
        nodes: how many were compared.
        flips: the most elements of a node that one process rounded to another value.
        final_difference: of the outputs when the model runs by itself, relative likewise: what
            nodes differ by adds up, and in a quantized model may be a step of the format.
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
    """Compares each node of a sharded model with what one process computes. Called by all.

    The reference is the node of the model before, called on plain whole tensors. The sharded node
    is given the reference's inputs, in the layout in which the sharded model has them, so that each
    node answers for itself: a sum that is added up in another order, and rounded to another code,
    cannot alarm at a node further down. Nodes that were inserted have to give what they read, in
    whatever layout. Then the model runs by itself, and its outputs are compared.

    A node's value is right where each element differs by at most `tolerance` times the largest
    magnitude of the reference, and the rounding error of its inputs. Values that stand for "never"
    (infinite, or the dtype's extremes in masks) are no magnitude. Integers and booleans have to be
    equal. Of a quantized node, whose sums may lie at a rounding boundary, 2 % of the elements and
    four may be any number: a wrong layout changes far more. Plain tensors, such as
    `parallelize_module` leaves between modules, may be the whole value or this process's
    `torch.chunk` of it along one dimension. The first process's reference is that of all, so that
    replicated tensors which differ between processes are seen.

    What is not seen: what these inputs do not show, such as a scale per tensor that is the same
    for every chunk of them; numbers that are no tensors, though what is computed with them is; and
    tensors that were loaded wrongly, where the reference gathers them from the sharded model.

    Args:
        before: the model before it was sharded, its nodes by the same names. Tensors on the meta
            device are fetched for one module at a time, and freed: no process needs it whole.
        sharded: the model, in `eval()`, with DTensors as parameters.
        inputs: plain whole tensors by name, the same on every process; small ones will do.
        tolerance: relative, for float32; coarser dtypes are allowed four rounding steps of theirs.
        source: where tensors on the meta device are read from; None: they are gathered.
    Returns: the differences; the same on every process.

    Raises:
        DistributedError: on every process, naming the first node that differs; or the processes
            have other inputs. Where a node raises, at once: processes that it does not raise on
            miss this one when it ends (see `guarded`).
        ConfigError: the model is in training mode.
        GraphError: the sharded graph lacks nodes of the one before.
        PlanError: the model has no sharded parameter.
    """
    if sharded.training or before.training:
        raise ConfigError("the check expects models in evaluation mode: call model.eval() first.")
    check_same_inputs(inputs)
    with torch.no_grad(), matmul_precision("highest"), _kept_state(before, sharded):
        comparison = _Comparison(before, sharded, tolerance, source)
        report, expected = comparison.run(inputs)
        final = comparison.compare_outputs(sharded(**inputs), expected)
    if final.wrong:
        raise DistributedError(
            f"the sharded model's output differs from one process's {final.wrong}, though each "
            "node by itself does not."
        )
    return replace(report, final_difference=final.relative)


class _Comparison:
    """Two runs side by side: of the model before, and of the sharded one."""

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
        """Runs and compares all nodes; also gives the reference's output."""
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
            # A region is entered once, and holds for both runs.
            reference[twin] = env[node] = self._sharded.run_node(node)
            return Difference()
        if node.target is same_memory:
            # Values are forced one by one here, which parts them from what they are views of.
            env[node] = env[node.all_input_nodes[0]]
            return Difference()
        device = this_device()
        if twin is not None:
            # What is drawn at random is drawn alike by both.
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                reference[twin] = self._reference.run_node(twin)
        origin = self._origin(node)
        allowed = self._allowed(origin) if twin is origin else Allowed(self._tolerance)
        expected = tree_map(of_first_process, reference[origin])
        env[node] = self._run_sharded(node)
        found = difference(env[node], expected, allowed, self._groups)
        if not found.wrong:
            env[node] = self._forced(env[node], expected)
        if twin is not None and shared_writes(twin):
            self._force_all()
        return found

    def _force_all(self) -> None:
        """After a write: what is a view of what was written has changed as well."""
        for node, value in self._sharded.env.items():
            origin = self._origin(node)
            if origin in self._reference.env:
                expected = tree_map(of_first_process, self._reference.env[origin])
                self._sharded.env[node] = self._forced(value, expected)

    def _run_sharded(self, node: fx.Node) -> Any:
        try:
            return self._sharded.run_node(node)
        except Exception as error:
            if is_peer_failure(error):
                raise
            # At once: where the others do not raise, they may wait for this process already.
            said = f"it raises {type(error).__name__}: {first_line(error).rstrip('.')}"
            raise DistributedError(self._message(node, said)) from error

    def _origin(self, node: fx.Node) -> fx.Node:
        """The node before whose value a node has: inserted ones give what they read."""
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

    def compare_outputs(self, found: Any, expected: Any) -> Difference:
        """How far the outputs are off; where the model rounds, by any number."""
        expected = tree_map(of_first_process, expected)
        relative = FREE * max(self._tolerance, rounding_error(list_tensors(expected)))
        relative = math.inf if _rounds(self._model) else relative
        return agreed(difference(found, expected, Allowed(relative), self._groups))

    def _forced(self, found: Any, expected: Any) -> Any:
        """The reference's value in the layout of the sharded one."""
        if isinstance(expected, Tensor) and isinstance(found, Tensor):
            piece = get_piece(expected, found, self._groups)
            return found if piece is None else piece.value
        parts, wholes = tree_children(found), tree_children(expected)
        if not parts or not wholes:
            return found
        forced = {key: self._forced(part, wholes[key]) for key, part in parts.items()}
        return tree_rebuild(found, forced)

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
def _kept_state(before: CapturedModule, sharded: nn.Module) -> Iterator[None]:
    """Afterwards, what the graph writes into parameters and buffers is undone."""
    names = set(mutated_names([before.graph]))
    tensors = [
        x for model in (before, sharded) for path, x in named_tensors(model) if path in names
    ]
    local = [get_local(x) for x in tensors if not x.is_meta]
    kept = [x.clone() for x in local]
    try:
        yield
    finally:
        for x, content in zip(local, kept, strict=True):
            x.copy_(content)


def _twins(before: fx.Graph, sharded: fx.Graph) -> dict[str, fx.Node]:
    """The nodes of the graph before by name, which the sharded graph has in the same order."""
    twins = {node.name: node for node in before.nodes}
    kept = [node.name for node in sharded.nodes if node.name in twins]
    if kept != list(twins):
        lost = next((name for name in twins if name not in kept), None)
        reason = f"'{lost}' is missing" if lost else "they are in another order"
        raise GraphError(f"expected the nodes of before in the sharded graph, but {reason}.")
    return twins


def _free(runner: GraphRunner, done: fx.Node | None) -> None:
    """Drops the values that no node after this one reads."""
    for read in runner.user_to_last_uses.get(done, ()) if done is not None else ():
        runner.env.pop(read, None)


def _copied(value: Any) -> Any:
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, value)


def _rounds(module: nn.Module | None) -> bool:
    """Whether a module or one in it rounds to a number format."""
    modules = [] if module is None else list(module.modules())
    return any(isinstance(m, QuantizedOperator) and not m.spec.is_float for m in modules)
