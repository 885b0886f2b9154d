"""Influence of slices: results that depend on one process's slice of other results.

If each process computes on its own slice of a layer's outputs, such as Megatron's attention heads,
another slice must not change its results. This module measures it: it adds noise to a slice, and
checks that every changed result changes only within the same slice of one of its dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from chop.captured.state.preserve_state import preserve_state
from chop.distributed.placements import local_slices, sharded
from chop.errors import PlanError
from chop.ir.annotate import tensors_in
from chop.ir.graph import MaseGraph
from chop.ir.propagate import GraphRunner, bind_inputs, example_inputs, propagate


def influenced_layers(
    mg: MaseGraph, processes: int, local: Collection[fx.Node], summed: Collection[fx.Node]
) -> set[fx.Node]:
    """Returns the layers that sum over sharded inputs and get them from sharded outputs.

    The model runs three times on inputs like those of its capture.

    Args:
        mg: the graph, with weights.
        processes: number of processes.
        local: linear layers with outputs sharded over the processes.
        summed: linear layers that sum over the last dimension of their input, reduced over all
            processes.
    Returns: the layers in `summed` with a sharded input; the others get the whole input.
    Raises:
        PlanError: if a node between them, or the model's result, depends on other slices.
    """
    if not local:
        return set()
    if any(tensor.is_meta for tensor in mg.model.parameters()):
        raise PlanError("the model has no weights (device meta); load its weights first.")
    inputs, values = example_inputs(mg.model), dict[fx.Node, Any]()
    propagate(
        mg.model, inputs, lambda node, x: values.setdefault(node, _copied(x)), with_values=True
    )
    reached: set[fx.Node] = set()
    with preserve_state(mg.model), torch.no_grad():
        mg.model.eval()
        # All slices except the last have the same size, so the first and the last one suffice.
        for process in sorted({0, processes - 1}):
            run = _DisturbedRun(mg, (process, processes), values, local, summed)
            run.run(*bind_inputs(mg.model, inputs))
            reached |= run.reached
    return reached


class _DisturbedRun(GraphRunner):
    """Run of a graph with noise in the slices of one process.

    Args:
        mg: the graph.
        place: index of the process, and number of processes.
        values: results of all nodes in the run without noise.
        local: see `influenced_layers`.
        summed: see `influenced_layers`.
    """

    def __init__(
        self,
        mg: MaseGraph,
        place: tuple[int, int],
        values: Mapping[fx.Node, Any],
        local: Collection[fx.Node],
        summed: Collection[fx.Node],
    ) -> None:
        super().__init__(mg.model)
        self.extra_traceback = False
        self.mg, self.place, self.values = mg, place, values
        self.local, self.summed = local, summed
        self.origins: dict[fx.Node, fx.Node] = {}
        self.reached: set[fx.Node] = set()
        self.generator = torch.Generator().manual_seed(0)

    def run_node(self, n: fx.Node) -> Any:
        """Runs a node and checks its result."""
        result = super().run_node(n)
        origin = next((self.origins[x] for x in n.all_input_nodes if x in self.origins), None)
        if n in self.summed:
            if origin is not None:
                self.reached.add(n)
                self._check_summed(n, origin)
            # The sum over all processes has no slices: continue with the undisturbed values.
            return _copied(self.values[n])
        if n in self.local:
            self.origins[n] = n
            self._disturb(result)
        elif origin is not None:
            self._check(n, result, origin)
        return result

    def _disturb(self, result: Tensor) -> None:
        part = result[self._slices(result, result.ndim - 1)]
        noise = torch.randn(part.shape, generator=self.generator)
        part.add_(noise.to(part.device, part.dtype))

    def _check(self, node: fx.Node, result: Any, origin: fx.Node) -> None:
        changed = self._changed(node, result)
        if not any(where.any() for where in changed):
            return
        self.origins[node] = origin
        dims = [self._dims(where) for where in changed]
        if node.op == "output" or not all(dims):
            raise self._error(node, origin)
        if self.mg.operator(node).layout == "view" and _is_view_of_others(node, dims[0]):
            raise self._error(node, origin)

    def _check_summed(self, node: fx.Node, origin: fx.Node) -> None:
        given = node.all_input_nodes[0]
        (changed,) = self._changed(given, self.env[given])
        if changed.ndim - 1 not in self._dims(changed):
            raise self._error(node, origin)

    def _changed(self, node: fx.Node, result: Any) -> list[Tensor]:
        """Returns which elements of a result differ from the run without noise."""
        pairs = zip(tensors_in(self.values[node]), tensors_in(result), strict=True)
        # Exact comparison: unaffected elements repeat the same operations.
        return [~torch.isclose(x, y, rtol=0, atol=0, equal_nan=True) for x, y in pairs]

    def _dims(self, changed: Tensor) -> set[int]:
        """Returns the dimensions along which all changes are within the process's slice."""
        dims = set()
        for dim in range(changed.ndim):
            inside = self._slices(changed, dim)
            # If a slice is the whole dimension, changes within it prove nothing.
            is_part = inside[dim].stop - inside[dim].start < changed.shape[dim]
            if is_part and int(changed[inside].sum()) == int(changed.sum()):
                dims.add(dim)
        return dims

    def _slices(self, x: Tensor, dim: int) -> tuple[slice, ...]:
        process, processes = self.place
        return local_slices(x.shape, (processes,), (process,), (sharded(dim),))

    def _error(self, node: fx.Node, origin: fx.Node) -> PlanError:
        what = "the model's output" if node.op == "output" else f"node '{node.name}'"
        reader = next(iter(origin.users)).name
        return PlanError(
            f"'{origin.target}.weight': {what} needs all of this layer's outputs, but each of "
            f"{self.place[1]} processes has a part; let node '{reader}' read '{origin.name}' as R."
        )


def _is_view_of_others(node: fx.Node, dims: Collection[int]) -> bool:
    """Returns whether a view's -1 would shorten a dimension other than the sharded one."""
    given = node.args[1:]
    sizes = given[0] if given and isinstance(given[0], tuple | list) else given
    if -1 not in sizes or len(sizes) <= max(dims):
        return False
    return not any(sizes[dim] == -1 or isinstance(sizes[dim], fx.Node) for dim in dims)


def _copied(value: Any) -> Any:
    """Copies the tensors of a value, because in-place operators change those of the run."""
    return fx.node.map_aggregate(value, lambda x: x.clone() if isinstance(x, Tensor) else x)
