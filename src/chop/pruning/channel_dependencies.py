"""Channel dependencies: the channels or heads of a layer, traced to all their readers.

A unit is an output channel of a layer, or an attention head. It can be removed if every reader is
known to treat units alike and separately; the readers are then cut as well. The dimension rules of
the operator table determine the path of units. An operator without a rule stops the trace, and the
layer stays complete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.captured.specs import TensorSpec
from chop.ir.graph import MaseGraph
from chop.ir.layers import user_besides
from chop.ir.ops.row import BlockedError, Call, RuleResult, Shape, UnitDim
from chop.nn.quantized.computed import why_computed
from chop.nn.quantized.masks import MASK_BUFFERS


@dataclass(frozen=True)
class _Cut:
    """Removal of units from a module's parameters.

    Attributes:
        module: module whose parameters and buffers are cut.
        axes: unit axis per parameter or buffer.
        sizes: attributes with the length of that axis.
        run: number of neighbors along the axis that belong to one unit.
    """

    module: nn.Module
    axes: Mapping[str, int]
    sizes: tuple[str, ...]
    run: int = 1

    def apply(self, indices: Tensor) -> None:
        """Keeps the units with the given indices, in their order."""
        axes = dict(self.axes)
        if "weight" in axes:
            axes |= dict.fromkeys(MASK_BUFFERS, axes["weight"])
        for name, axis in axes.items():
            value = getattr(self.module, name, None)
            if isinstance(value, Tensor):
                index = _unit_positions(indices, self.run).to(value.device)
                cut = value.detach().index_select(axis, index)
                is_parameter = isinstance(value, nn.Parameter)
                new = nn.Parameter(cut, value.requires_grad) if is_parameter else cut
                setattr(self.module, name, new)
        for name in self.sizes:
            setattr(self.module, name, len(indices) * self.run)


def _unit_positions(indices: Tensor, run: int) -> Tensor:
    """Returns indices along a dimension of the selected units, of `run` neighbors each."""
    return (indices[:, None] * run + torch.arange(run)).flatten()


@dataclass
class ChannelTrace:
    """Trace of one set of units through a graph.

    Attributes:
        mg: graph, which is unchanged before `apply`.
        shapes: shape of every node's result, for the example inputs.
        units: number of units.
        cuts: cuts of modules.
        places: nodes whose results have the units, with their positions.
        sizes: nodes with the length of a dimension as an argument, and the dimension.
        readers: inputs of layers that sum over the units, with the unit positions.
        met: for nodes that join several tensors, the unit positions in tensors that were reached.
        awaited: for the same nodes, all tensors that need to have the units.
    """

    mg: MaseGraph
    shapes: Mapping[fx.Node, Shape]
    units: int
    cuts: list[_Cut] = field(default_factory=list)
    places: list[tuple[fx.Node, UnitDim]] = field(default_factory=list)
    sizes: list[tuple[fx.Node, int]] = field(default_factory=list)
    readers: list[tuple[fx.Node, UnitDim]] = field(default_factory=list)
    met: dict[fx.Node, dict[fx.Node, UnitDim]] = field(default_factory=dict)
    awaited: dict[fx.Node, tuple[fx.Node, ...]] = field(default_factory=dict)

    def start(self, node: fx.Node, run: int = 1) -> None:
        """Starts at a layer whose outputs are the units, with `run` outputs each.

        Raises:
            BlockedError: if the units cannot be removed.
        """
        module = self.module(node)
        if getattr(module, "groups", 1) != 1:
            raise BlockedError("it is a grouped convolution")
        row = self.mg.operator(node)
        assert row.weight is not None
        self.cut(node, {"weight": row.weight.outputs, "bias": 0}, row.weight.sizes[:1], run)
        self.follow(node, UnitDim(len(self.shapes[node]) - 1 - row.spatial, run))

    def missing(self) -> tuple[fx.Node, UnitDim] | None:
        """Returns a joined tensor that lacks the units so far, and the position that they need."""
        for node, inputs in self.awaited.items():
            for given in inputs:
                if given not in self.met[node]:
                    return given, next(iter(self.met[node].values()))
        return None

    def meet(
        self, node: fx.Node, source: fx.Node, place: UnitDim, inputs: tuple[fx.Node, ...]
    ) -> UnitDim | None:
        """Records a reached input. The trace continues once all of `inputs` are reached."""
        met = self.met.setdefault(node, {})
        self.awaited[node] = inputs
        if any(other != place for other in met.values()):
            raise BlockedError(f"'{node.name}' joins them in another order")
        met[source] = place
        return place if set(met) == set(inputs) else None

    def follow(self, node: fx.Node, place: UnitDim) -> None:
        """Continues from a node whose result has the units at `place`."""
        self.places.append((node, place))
        for user in node.users:
            after = self.arrive(node, place, user, self.step(user, node, place))
            if after is not None:
                self.follow(user, after)

    def step(self, node: fx.Node, source: fx.Node, place: UnitDim) -> RuleResult:
        """Returns the result of a node's dimension rule for units that an input has at `place`."""
        call = Call(node, self.mg.operator(node), self.mg.get_module(node), self.shapes)
        if call.row.follow is None:
            raise call.mixing()
        return call.row.follow(call, source, place)

    def arrive(
        self, source: fx.Node, place: UnitDim, node: fx.Node, after: RuleResult
    ) -> UnitDim | None:
        """Records the cut of a node. Returns the unit position in its result, or None."""
        if after.parameters:
            self.cut(node, after.parameters, after.sizes, place.run)
            if self.mg.operator(node).is_product:
                self.readers.append((source, place))
        if after.aligned:
            assert after.place is not None
            return self.meet(node, source, after.place, after.aligned)
        if after.has_size and after.place is not None:
            self.sizes.append((node, after.place.dim))
        return after.place

    def maker(self, node: fx.Node, place: UnitDim) -> fx.Node | None:
        """Returns the layer that computed the units of a node, if they kept their position."""
        while not self.mg.operator(node).is_product:
            source = next(iter(node.all_input_nodes), None)
            if source is None or self.step(node, source, place).place != place:
                return None
            node = source
        return node

    def module(self, node: fx.Node) -> nn.Module:
        """Returns the module that a node calls, if no other node uses it or its parameters."""
        module = self.mg.get_module(node)
        if module is None:
            raise BlockedError(f"'{node.name}' has its weight outside of a module")
        computed = why_computed(module)
        if computed is not None:
            raise BlockedError(f"the weight of '{node.target}' is computed by {computed}")
        if sum(self.mg.get_module(other) is module for other in self.mg.nodes) > 1:
            raise BlockedError(f"'{node.target}' is called more than once")
        for parameter in module.parameters(recurse=False):
            user = user_besides(self.mg, parameter, [module])
            if user is not None:
                raise BlockedError(f"'{node.target}' shares its weight with {user}")
        return module

    def cut(self, node: fx.Node, axes: Mapping[str, int], sizes: Sequence[str], run: int) -> None:
        """Records the cut of a node's module."""
        self.cuts.append(_Cut(self.module(node), axes, tuple(sizes), run))

    def apply(self, indices: Tensor) -> None:
        """Removes all units except those with the given indices."""
        for cut in self.cuts:
            cut.apply(indices)
        for node, place in self.places:
            _resize_spec(node, place.dim, len(indices) * place.run)
        for node, dim in self.sizes:
            _resize_argument(node, dim, len(indices), self.units)


def _resize_spec(node: fx.Node, dim: int, size: int) -> None:
    spec = node.meta.get("spec")
    if isinstance(spec, TensorSpec):
        shape = (*spec.shape[:dim], size, *spec.shape[dim + 1 :])
        node.meta["spec"] = dataclasses.replace(spec, shape=shape)


def _resize_argument(node: fx.Node, dim: int, count: int, units: int) -> None:
    """Changes the size argument of a view for a dimension; -1 stays."""
    nested = isinstance(node.args[1], tuple | list)
    sizes: list[Any] = list(node.args[1] if nested else node.args[1:])  # type: ignore[arg-type]
    if sizes[dim] != -1:
        sizes[dim] = sizes[dim] // units * count
    node.args = (node.args[0], tuple(sizes)) if nested else (node.args[0], *sizes)
