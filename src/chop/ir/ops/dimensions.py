"""Dimension rules: which dimension of an operator's result follows which of an input.

A dimension holds units, such as channels or heads, of some neighbors each. A rule says where they
lie in the result, as long as every unit there comes from the same one in the input; what has no
rule mixes them. What a pass takes out, or puts on several devices, is its own business.
"""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from chop.ir.ops.row import BlockedError, Call, RuleResult, UnitDim


def unchanged(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Element by element, of one input."""
    if call.node.all_input_nodes != [source]:
        raise call.mixing()
    return RuleResult(place)


def arithmetic(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Arithmetic with a number leaves units alone; so does a tensor that is the same for all.

    Where the other tensor is as long along their dimension, both have them.
    """
    inputs = tuple(call.node.all_input_nodes)
    if inputs == (source,):
        return RuleResult(place)
    behind = len(call.shapes[source]) - place.dim
    place = UnitDim(len(call.shapes[call.node]) - behind, place.run)
    lengths = {given: (1, *call.shapes[given])[-behind:][0] for given in inputs}
    lengths |= {given: 1 for given in inputs if len(call.shapes[given]) < behind}
    if lengths[source] != call.shapes[call.node][place.dim]:
        raise call.mixing()
    aligned = tuple(given for given in inputs if lengths[given] == lengths[source])
    return RuleResult(place, aligned=aligned if len(aligned) > 1 else ())


def pooled(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Trailing dimensions are pooled, the others stay."""
    if place.dim >= len(call.shapes[source]) - call.row.spatial:
        raise call.mixing("pools them")
    return unchanged(call, source, place)


def by_channel(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """A norm with statistics of each channel by itself."""
    if place.dim != 1:
        raise call.mixing("mixes them")
    names = ("weight", "bias", "running_mean", "running_var")
    return RuleResult(place, dict.fromkeys(names, 0), ("num_features",))


def padded(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Trailing dimensions get longer, the others stay."""
    padding = getattr(call.module, "padding", None) if call.module else call.argument(1, "pad")
    if not isinstance(padding, tuple | list):
        raise call.mixing()
    if place.dim >= len(call.shapes[source]) - len(padding) // 2:
        raise call.mixing("adds to them")
    return unchanged(call, source, place)


def linear(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """The last dimension is summed over, the others stay."""
    if place.dim < len(call.shapes[source]) - 1:
        return unchanged(call, source, place)
    return _summed(call)


def mixed_last(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """The last dimension is mixed, the others stay."""
    if place.dim == len(call.shapes[source]) - 1:
        raise call.mixing("mixes them")
    return unchanged(call, source, place)


def convolution(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Channels are summed over, or stay where each has a filter of its own."""
    module: Any = call.module
    if module is None:
        raise BlockedError(f"'{call.node.name}' has its weight outside of a module")
    if place.dim != len(call.shapes[source]) - 1 - call.row.spatial:
        raise call.mixing("sums over them")
    if module.groups == 1:
        return _summed(call)
    if module.groups == module.in_channels == module.out_channels:
        sizes = ("groups", "in_channels", "out_channels")
        return RuleResult(place, {"weight": 0, "bias": 0}, sizes)
    raise BlockedError(f"they reach the grouped convolution '{call.node.name}'")


def _summed(call: Call) -> RuleResult:
    assert call.row.weight is not None
    return RuleResult(None, {"weight": call.row.weight.inputs}, call.row.weight.sizes[1:])


def reduced(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Some dimensions are summed over, and left out or kept with length 1."""
    rank = len(call.shapes[source])
    given = call.argument(1, "dim")
    listed = given if isinstance(given, tuple | list) else [given]
    if call.module is not None or not all(isinstance(dim, int) for dim in listed):
        raise call.mixing("sums over them")
    dims = {dim % rank for dim in listed}
    if place.dim in dims:
        raise call.mixing("sums over them")
    keeps = len(call.shapes[call.node]) == rank
    dim = place.dim if keeps else place.dim - sum(dim < place.dim for dim in dims)
    return RuleResult(UnitDim(dim, place.run))


def permuted(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Dimensions in the order that the arguments give."""
    return RuleResult(UnitDim(_dims(call, source).index(place.dim), place.run))


def transposed(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """The two dimensions that the arguments give change places."""
    first, second = _dims(call, source)
    return RuleResult(UnitDim({first: second, second: first}.get(place.dim, place.dim), place.run))


def _dims(call: Call, source: fx.Node) -> list[int]:
    dims = call.listed()
    if call.node.kwargs or not all(isinstance(dim, int) for dim in dims):
        raise call.mixing()
    return [dim % len(call.shapes[source]) for dim in dims]


def viewed(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """A reshape to sizes that the arguments give."""
    after = reshaped(call, source, place).place
    assert after is not None
    if call.node.kwargs or not isinstance(call.listed()[after.dim], int):
        raise call.mixing("computes their number")
    return RuleResult(after, has_size=True)


def reshaped(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """The units are kept, split off from what they hold, or merged with it."""
    before, after = call.shapes[source], call.shapes[call.node]
    size, ahead = before[place.dim], math.prod(before[: place.dim])
    behind = [
        math.prod(before[place.dim + 1 : end]) for end in range(place.dim + 1, len(before) + 1)
    ]
    for dim in range(len(after)):
        if math.prod(after[:dim]) != ahead:
            continue
        if after[dim] == size:
            return RuleResult(UnitDim(dim, place.run))
        parts = after[dim : dim + 2]
        if len(parts) == 2 and math.prod(parts) == size and place.run % parts[1] == 0:
            return RuleResult(UnitDim(dim, place.run // parts[1]))
        for inner in behind:
            if after[dim] == size * inner:
                return RuleResult(UnitDim(dim, place.run * inner))
    raise call.mixing("mixes them")


def indexed(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Whole along their dimension; the others are cut, dropped or joined by new ones.

    Of the keys and values that a cache gives, each has them.
    """
    given = call.node.args[1]
    if call.shapes[source] == () and isinstance(given, int):
        return RuleResult(place)
    index = list(given) if isinstance(given, tuple | list) else [given]
    known = all(x is None or x is Ellipsis or isinstance(x, int | slice) for x in index)
    if not known or call.node.all_input_nodes != [source]:
        raise call.mixing("picks some of them")
    taken = sum(x is not None and x is not Ellipsis for x in index)
    rest = [slice(None)] * (len(call.shapes[source]) - taken)
    at = index.index(Ellipsis) if Ellipsis in index else len(index)
    index[at : at + 1] = rest
    before = after = 0
    for x in index:
        if x is None:
            after += 1
        elif before == place.dim:
            if x != slice(None):
                raise call.mixing("picks some of them")
            return RuleResult(UnitDim(after, place.run))
        else:
            before, after = before + 1, after + (not isinstance(x, int))
    raise call.mixing()


def joined(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Tensors one after another along another dimension: all have them."""
    dim = call.argument(1, "dim")
    dim = 0 if dim is None else dim
    rank = len(call.shapes[source])
    if not isinstance(dim, int) or dim % rank == place.dim:
        raise call.mixing("joins them with others")
    inputs = tuple(call.node.all_input_nodes)
    return RuleResult(place, aligned=inputs if len(inputs) > 1 else ())


def expanded(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Repeated along other dimensions; the sizes that the arguments give say theirs."""
    behind = len(call.shapes[source]) - place.dim
    dim = len(call.shapes[call.node]) - behind
    same = call.shapes[source][place.dim] == call.shapes[call.node][dim]
    if call.node.kwargs or not same or not isinstance(call.listed()[dim], int):
        raise call.mixing("computes their number")
    return RuleResult(UnitDim(dim, place.run), has_size=True)


def unsqueezed(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """A new dimension of length 1."""
    dim = call.argument(1, "dim")
    if not isinstance(dim, int):
        raise call.mixing()
    new = dim % len(call.shapes[call.node])
    return RuleResult(UnitDim(place.dim + (new <= place.dim), place.run))


def normalized(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """A norm over trailing dimensions, of each unit by itself."""
    shape = getattr(call.module, "normalized_shape", None) or call.argument(1, "normalized_shape")
    rank = len(call.shapes[source])
    if not isinstance(shape, tuple | list) or place.dim >= rank - len(shape):
        raise call.mixing()
    return RuleResult(place)


def cached(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Keys and values go into a cache, and come back with those before them."""
    _, keys, values, *_ = call.node.args
    if source not in (keys, values):
        raise call.mixing()
    return RuleResult(place, aligned=(keys, values))  # type: ignore[arg-type]


def attention(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Heads stay apart: queries, keys and values have them.

    A unit may be several heads, of queries that share keys and values.
    """
    inputs = tuple(call.argument(n, name) for n, name in enumerate(("query", "key", "value")))
    mask = call.argument(3, "attn_mask")
    heads = call.shapes[source][-3:-2]
    if place.dim != len(call.shapes[source]) - 3:
        raise BlockedError(f"they reach '{call.node.name}' as something else than heads")
    shared = call.shapes[inputs[0]][-3] // heads[0]
    place = UnitDim(place.dim, place.run * shared)
    if isinstance(mask, fx.Node) and call.shapes[mask][-3:-2] not in ((), (1,)):
        raise call.mixing("has a mask per head")
    return RuleResult(place, aligned=inputs)


def asked_for_size(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Reads the length of one dimension, or of all."""
    dim = call.argument(1, "dim")
    if not isinstance(dim, int) or dim % len(call.shapes[source]) == place.dim:
        raise call.mixing("reads their number")
    return RuleResult(None)
