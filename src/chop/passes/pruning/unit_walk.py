"""Follows the channels or heads of a layer through the graph to whatever reads them.

A unit is an output channel of a layer, or an attention head. It can leave the model where every
reader is known to treat units alike and apart: then the reader is cut too. Rules are per operator;
what has no rule stops the walk, and the layer stays whole.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from chop.ir.capture.specs import TensorSpec
from chop.ir.graph import MaseGraph
from chop.nn.quantized.masks import FULL, MASK
from chop.passes.pruning.layers import user_besides

Shape = tuple[int, ...]


class BlockedError(Exception):
    """The units reach something that cannot do without them; the message says what."""


@dataclass(frozen=True)
class Place:
    """Where the units lie in a tensor: along `dim`, each as `run` neighbours."""

    dim: int
    run: int = 1


@dataclass(frozen=True)
class Cut:
    """What a module loses with a unit.

    Attributes:
        module: whose parameters and buffers are cut.
        axes: per parameter or buffer the axis along which units lie.
        sizes: attributes that say how long that axis is.
        run: neighbours along the axis that belong to one unit.
    """

    module: nn.Module
    axes: Mapping[str, int]
    sizes: tuple[str, ...]
    run: int = 1

    def apply(self, kept: Tensor) -> None:
        """Keeps the units with the given indices, in their order."""
        axes = dict(self.axes)
        if "weight" in axes:
            axes |= dict.fromkeys((MASK, FULL), axes["weight"])
        for name, axis in axes.items():
            value = getattr(self.module, name, None)
            if isinstance(value, Tensor):
                index = spread(kept, self.run).to(value.device)
                cut = value.detach().index_select(axis, index)
                is_parameter = isinstance(value, nn.Parameter)
                new = nn.Parameter(cut, value.requires_grad) if is_parameter else cut
                setattr(self.module, name, new)
        for name in self.sizes:
            setattr(self.module, name, len(kept) * self.run)


def spread(kept: Tensor, run: int) -> Tensor:
    """The positions of units that have `run` neighbours each."""
    return (kept[:, None] * run + torch.arange(run)).flatten()


@dataclass
class Walk:
    """One set of units on its way.

    Attributes:
        mg: the graph; nothing is changed before `apply`.
        shapes: of every node's result, with the example inputs.
        units: how many units there are.
        cuts: what modules lose.
        places: the nodes whose results have the units, and where.
        sizes: nodes whose arguments say the length of a dimension, and which.
        met: per node that joins several tensors, where the units are in those that have come.
        awaited: for the same nodes, all the tensors that have to bring the units.
    """

    mg: MaseGraph
    shapes: Mapping[fx.Node, Shape]
    units: int
    cuts: list[Cut] = field(default_factory=list)
    places: list[tuple[fx.Node, Place]] = field(default_factory=list)
    sizes: list[tuple[fx.Node, int]] = field(default_factory=list)
    met: dict[fx.Node, dict[fx.Node, Place]] = field(default_factory=dict)
    awaited: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)

    def start(self, node: fx.Node, run: int = 1) -> None:
        """Sets out from a layer whose outputs are the units, or `run` outputs each.

        Raises:
            BlockedError: the units cannot be taken out.
        """
        module = self.module(node)
        if getattr(module, "groups", 1) != 1:
            raise BlockedError("it is a grouped convolution")
        axis = 1 if isinstance(module, nn.modules.conv._ConvTransposeNd) else 0
        size = "out_features" if isinstance(module, nn.Linear) else "out_channels"
        self.cut(node, {"weight": axis, "bias": 0}, (size,), run)
        self.follow(node, Place(channel_dim(module, self.shapes[node]), run))

    def missing(self) -> fx.Node | None:
        """A tensor that has to bring the units too, because it is joined with one that does."""
        for node, inputs in self.awaited.items():
            for given in inputs:
                if given not in self.met[node]:
                    return given
        return None

    def meet(
        self, node: fx.Node, source: fx.Node, place: Place, inputs: list[fx.Node]
    ) -> Place | None:
        """Notes an arrival; the walk goes on from `node` once all of `inputs` have come."""
        met = self.met.setdefault(node, {})
        self.awaited[node] = inputs
        if any(other != place for other in met.values()):
            raise BlockedError(f"'{node.name}' joins them in another order")
        met[source] = place
        return place if set(met) == set(inputs) else None

    def follow(self, node: fx.Node, place: Place) -> None:
        """Goes on from a node whose result has the units at `place`."""
        self.places.append((node, place))
        for user in node.users:
            rule = RULES.get(self.mg.operator(user).name)
            if rule is None or user.op == "output":
                raise BlockedError(f"they reach '{user.name}'")
            after = rule(self, user, node, place)
            if after is not None:
                self.follow(user, after)

    def module(self, node: fx.Node) -> nn.Module:
        """The module that a node calls, if nothing else uses it or its parameters."""
        module = self.mg.module_of(node)
        if module is None:
            raise BlockedError(f"'{node.name}' has its weight outside of a module")
        if is_parametrized(module):
            raise BlockedError(f"the weight of '{node.target}' is parametrised")
        if sum(self.mg.module_of(other) is module for other in self.mg.nodes) > 1:
            raise BlockedError(f"'{node.target}' is called more than once")
        for parameter in module.parameters(recurse=False):
            user = user_besides(self.mg, parameter, [module])
            if user is not None:
                raise BlockedError(f"'{node.target}' shares its weight with {user}")
        return module

    def cut(self, node: fx.Node, axes: Mapping[str, int], sizes: Sequence[str], run: int) -> None:
        """Notes what the module of a node will lose."""
        self.cuts.append(Cut(self.module(node), axes, tuple(sizes), run))

    def apply(self, kept: Tensor) -> None:
        """Takes out all units but those with the given indices."""
        for cut in self.cuts:
            cut.apply(kept)
        for node, place in self.places:
            _resize_spec(node, place.dim, len(kept) * place.run)
        for node, dim in self.sizes:
            _resize_argument(node, dim, len(kept), self.units)


def channel_dim(module: nn.Module, shape: Shape) -> int:
    """The dimension of a layer's result along which its outputs lie."""
    spatial = 0 if isinstance(module, nn.Linear) else len(module.kernel_size)  # type: ignore[arg-type]
    return len(shape) - 1 - spatial


def _resize_spec(node: fx.Node, dim: int, size: int) -> None:
    spec = node.meta.get("spec")
    if isinstance(spec, TensorSpec):
        shape = (*spec.shape[:dim], size, *spec.shape[dim + 1 :])
        node.meta["spec"] = dataclasses.replace(spec, shape=shape)


def _resize_argument(node: fx.Node, dim: int, kept: int, units: int) -> None:
    """Changes the number that a view is given for a dimension; -1 stays."""
    nested = isinstance(node.args[1], tuple | list)
    sizes: list[Any] = list(node.args[1] if nested else node.args[1:])  # type: ignore[arg-type]
    if sizes[dim] != -1:
        sizes[dim] = sizes[dim] // units * kept
    node.args = (node.args[0], tuple(sizes)) if nested else (node.args[0], *sizes)


# --- rules ---------------------------------------------------------------------------------------

Rule = Callable[[Walk, fx.Node, fx.Node, Place], Place | None]
"""(walk, node, the input that has the units, where) -> where in the result; None: they end here."""


def _unchanged(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place:
    if node.all_input_nodes != [source]:
        raise BlockedError(f"they reach '{node.name}'")
    return place


def _pooled(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place:
    spatial = 1 if walk.mg.operator(node).name.endswith("1d") else 2
    if place.dim >= len(walk.shapes[source]) - spatial:
        raise BlockedError(f"'{node.name}' pools them")
    return _unchanged(walk, node, source, place)


def _normalised(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place:
    if place.dim != 1:
        raise BlockedError(f"'{node.name}' mixes them")
    names = ("weight", "bias", "running_mean", "running_var")
    walk.cut(node, dict.fromkeys(names, 0), ("num_features",), place.run)
    return place


def _linear(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place | None:
    if place.dim < len(walk.shapes[source]) - 1:
        return _unchanged(walk, node, source, place)
    walk.cut(node, {"weight": 1}, ("in_features",), place.run)
    return None


def _convolution(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place | None:
    module: Any = walk.module(node)
    if place.dim != channel_dim(module, walk.shapes[source]):
        raise BlockedError(f"'{node.name}' sums over them")
    if module.groups == 1:
        axis = 0 if module.transposed else 1
        walk.cut(node, {"weight": axis}, ("in_channels",), place.run)
        return None
    if module.groups == module.in_channels == module.out_channels:
        sizes = ("groups", "in_channels", "out_channels")
        walk.cut(node, {"weight": 0, "bias": 0}, sizes, place.run)
        return place
    raise BlockedError(f"they reach the grouped convolution '{node.name}'")


def _reduced(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place:
    rank = len(walk.shapes[source])
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    listed = given if isinstance(given, tuple | list) else [given]
    if node.op == "call_module" or not all(isinstance(dim, int) for dim in listed):
        raise BlockedError(f"'{node.name}' sums over them")
    dims = {int(dim) % rank for dim in listed}  # type: ignore[arg-type]
    if place.dim in dims:
        raise BlockedError(f"'{node.name}' sums over them")
    keeps = len(walk.shapes[node]) == rank
    return place if keeps else Place(place.dim - sum(dim < place.dim for dim in dims), place.run)


def _reordered(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place:
    rank = len(walk.shapes[source])
    order = list(range(rank))
    dims = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
    if node.kwargs or not all(isinstance(dim, int) for dim in dims):
        raise BlockedError(f"they reach '{node.name}'")
    numbers = [int(dim) % rank for dim in dims]  # type: ignore[arg-type]
    if walk.mg.operator(node).name == "permute":
        order = numbers
    else:
        first, second = numbers
        order[first], order[second] = second, first
    return Place(order.index(place.dim), place.run)


def _viewed(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place:
    after = _realigned(walk, node, source, place)
    sizes = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
    if node.kwargs or not isinstance(sizes[after.dim], int):
        raise BlockedError(f"'{node.name}' computes their number")
    walk.sizes.append((node, after.dim))
    return after


def _realigned(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place:
    """Where a reshape puts the units: kept, split off from what they hold, or merged with it."""
    before, after = walk.shapes[source], walk.shapes[node]
    size, ahead = before[place.dim], math.prod(before[: place.dim])
    behind = [
        math.prod(before[place.dim + 1 : end]) for end in range(place.dim + 1, len(before) + 1)
    ]
    for dim in range(len(after)):
        if math.prod(after[:dim]) != ahead:
            continue
        if after[dim] == size:
            return Place(dim, place.run)
        if place.run > 1 and after[dim : dim + 2] == (walk.units, place.run):
            return Place(dim)
        for inner in behind:
            if after[dim] == size * inner:
                return Place(dim, place.run * inner)
    raise BlockedError(f"'{node.name}' mixes them")


def _joined(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place | None:
    """Arithmetic with a number leaves units alone; with a tensor, both have to lose them."""
    inputs = node.all_input_nodes
    if inputs == [source]:
        return place
    if any(walk.shapes[given] != walk.shapes[node] for given in inputs):
        raise BlockedError(f"they reach '{node.name}'")
    return walk.meet(node, source, place, inputs)


def _padded(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place:
    module = walk.mg.module_of(node)
    padding = getattr(module, "padding", None) if module else _argument(node, 1, "pad")
    if not isinstance(padding, tuple | list):
        raise BlockedError(f"they reach '{node.name}'")
    if place.dim >= len(walk.shapes[source]) - len(padding) // 2:
        raise BlockedError(f"'{node.name}' adds to them")
    return _unchanged(walk, node, source, place)


def _attention(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> Place | None:
    inputs = [_argument(node, n, name) for n, name in enumerate(("query", "key", "value"))]
    mask = _argument(node, 3, "attn_mask")
    if place != Place(len(walk.shapes[source]) - 3) or _argument(node, 7, "enable_gqa"):
        raise BlockedError(f"they reach '{node.name}' as something else than heads")
    if isinstance(mask, fx.Node) and walk.shapes[mask][-3:-2] not in ((), (1,)):
        raise BlockedError(f"'{node.name}' has a mask per head")
    return walk.meet(node, source, place, inputs)


def _argument(node: fx.Node, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _asked_for_size(walk: Walk, node: fx.Node, source: fx.Node, place: Place) -> None:
    rank = len(walk.shapes[source])
    dim = node.args[1] if len(node.args) > 1 else None
    if not isinstance(dim, int) or dim % rank == place.dim:
        raise BlockedError(f"'{node.name}' reads their number")


ELEMENTWISE = frozenset(
    {"relu", "gelu", "silu", "tanh", "softplus", "selu", "sigmoid", "leaky_relu", "elu"}
    | {"hardtanh", "hardswish", "mish", "softsign", "dropout", "identity", "contiguous"}
    | {"relu6", "celu", "hardsigmoid", "log_sigmoid", "clamp", "abs", "neg", "exp", "pow"}
    | {"square", "sqrt", "rsqrt"}
)
NORMS = ("batch_norm1d", "batch_norm2d", "batch_norm3d")
ARITHMETIC = ("add", "sub", "mul", "div")
POOLING = [f"{kind}_pool{rank}d" for kind in ("max", "avg", "adaptive_avg") for rank in (1, 2)]

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _unchanged),
    **dict.fromkeys(POOLING, _pooled),
    **dict.fromkeys(NORMS, _normalised),
    **dict.fromkeys(("conv1d", "conv2d", "conv_transpose2d"), _convolution),
    **dict.fromkeys(("mean", "sum"), _reduced),
    **dict.fromkeys(("transpose", "permute"), _reordered),
    **dict.fromkeys(("view", "reshape"), _viewed),
    **dict.fromkeys(ARITHMETIC, _joined),
    "pad": _padded,
    "linear": _linear,
    "flatten": _realigned,
    "scaled_dot_product_attention": _attention,
    "size": _asked_for_size,
}

KEEPING = ELEMENTWISE | {*ARITHMETIC, *POOLING, *NORMS, "pad"}
"""Operators that leave units where they are."""
