"""Dimension rules: mapping of input dimensions to dimensions of an operator's result.

A dimension holds units, such as channels or heads, each as several adjacent elements. A rule gives
their position in the result if every unit there comes from the same unit of the input. Operators
without a rule mix units. Pruning and sharding use the same rules.
"""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from chop.ir.ops.row import BlockedError, Call, RuleResult, UnitDim


def unchanged(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Element-wise operator of one input: dimensions stay."""
    if call.node.all_input_nodes != [source]:
        raise call.mixing()
    return RuleResult(place)


def typed(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Cast to the type of another tensor: dimensions stay, and the other's units end."""
    return RuleResult(place if call.node.args[0] is source else None)


def arithmetic(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Arithmetic: units stay if the other operand is a number or is constant along their dimension.

    If the other tensor has the same length along their dimension, both have units.
    """
    inputs = tuple(call.node.all_input_nodes)
    if inputs == (source,):
        return RuleResult(place)
    # Broadcasting aligns dimensions from the right.
    behind = len(call.shapes[source]) - place.dim
    place = UnitDim(len(call.shapes[call.node]) - behind, place.run)
    lengths = {given: (1, *call.shapes[given])[-behind:][0] for given in inputs}
    lengths |= {given: 1 for given in inputs if len(call.shapes[given]) < behind}
    if lengths[source] != call.shapes[call.node][place.dim]:
        raise call.mixing()
    aligned = tuple(given for given in inputs if lengths[given] == lengths[source])
    return RuleResult(place, aligned=aligned if len(aligned) > 1 else ())


def pooled(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Pooling over trailing dimensions; the others stay."""
    if place.dim >= len(call.shapes[source]) - call.row.spatial:
        raise call.mixing("pools them")
    return unchanged(call, source, place)


def by_channel(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Norm with statistics per channel."""
    if place.dim != 1:
        raise call.mixing("mixes them")
    names = ("weight", "bias", "running_mean", "running_var")
    return RuleResult(place, dict.fromkeys(names, 0), ("num_features",))


def padded(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Padding of trailing dimensions; the others stay."""
    padding = getattr(call.module, "padding", None) if call.module else call.argument(1, "pad")
    if not isinstance(padding, tuple | list):
        raise call.mixing()
    if place.dim >= len(call.shapes[source]) - len(padding) // 2:
        raise call.mixing("adds to them")
    return unchanged(call, source, place)


def linear(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Linear layer: sums over the last dimension; the others stay."""
    if place.dim < len(call.shapes[source]) - 1:
        return unchanged(call, source, place)
    return _summed(call)


def mixed_last(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Mixes the last dimension; the others stay."""
    if place.dim == len(call.shapes[source]) - 1:
        raise call.mixing("mixes them")
    return unchanged(call, source, place)


def convolution(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Convolution: sums over channels, or keeps them if it is depthwise."""
    module: Any = call.module
    if module is None:
        raise BlockedError(f"'{call.node.name}' has its weight outside of a module")
    if place.dim != len(call.shapes[source]) - 1 - call.row.spatial:
        raise call.mixing("sums over them")
    if module.groups == 1:
        return _summed(call)
    # Depthwise: each output channel reads one input channel.
    if module.groups == module.in_channels == module.out_channels:
        sizes = ("groups", "in_channels", "out_channels")
        return RuleResult(place, {"weight": 0, "bias": 0}, sizes)
    raise BlockedError(f"they reach the grouped convolution '{call.node.name}'")


def _summed(call: Call) -> RuleResult:
    assert call.row.weight is not None
    return RuleResult(None, {"weight": call.row.weight.inputs}, call.row.weight.sizes[1:])


def reduced(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Reduction over some dimensions, which are removed or have length 1."""
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
    """Permutation of the dimensions by the arguments."""
    return RuleResult(UnitDim(_dims(call, source).index(place.dim), place.run))


def transposed(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Transposition of the two dimensions given by the arguments."""
    first, second = _dims(call, source)
    return RuleResult(UnitDim({first: second, second: first}.get(place.dim, place.dim), place.run))


def _dims(call: Call, source: fx.Node) -> list[int]:
    dims = call.listed()
    if call.node.kwargs or not all(isinstance(dim, int) for dim in dims):
        raise call.mixing()
    return [dim % len(call.shapes[source]) for dim in dims]


def viewed(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Reshape to sizes given by the arguments."""
    after = reshaped(call, source, place).place
    assert after is not None
    if call.node.kwargs or not isinstance(call.listed()[after.dim], int):
        raise call.mixing("computes their number")
    return RuleResult(after, has_size=True)


def reshaped(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Reshape that splits the unit dimension or merges it with its neighbors."""
    before, after = call.shapes[source], call.shapes[call.node]
    size, ahead = before[place.dim], math.prod(before[: place.dim])
    behind = [
        math.prod(before[place.dim + 1 : end]) for end in range(place.dim + 1, len(before) + 1)
    ]
    for dim in range(len(after)):
        # The dimension starts where as many elements precede it as before.
        if math.prod(after[:dim]) != ahead:
            continue
        if after[dim] == size:
            return RuleResult(UnitDim(dim, place.run))
        parts = after[dim : dim + 2]
        if len(parts) == 2 and math.prod(parts) == size and place.run % parts[1] == 0:  # split
            return RuleResult(UnitDim(dim, place.run // parts[1]))
        for inner in behind:
            if after[dim] == size * inner:  # merged with dimensions behind
                return RuleResult(UnitDim(dim, place.run * inner))
    raise call.mixing("mixes them")


def indexed(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Indexing: the unit dimension must be whole; others may be cut, dropped or added.

    Keys and values from a cache both have units.
    """
    given = call.node.args[1]
    if call.shapes[source] == () and isinstance(given, int):  # keys or values in a tuple
        return RuleResult(place)
    index = list(given) if isinstance(given, tuple | list) else [given]
    known = all(x is None or x is Ellipsis or isinstance(x, int | slice) for x in index)
    if not known or call.node.all_input_nodes != [source]:
        raise call.mixing("picks some of them")
    taken = sum(x is not None and x is not Ellipsis for x in index)
    rest = [slice(None)] * (len(call.shapes[source]) - taken)
    at = index.index(Ellipsis) if Ellipsis in index else len(index)
    index[at : at + 1] = rest  # one entry per dimension
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
    """Concatenation along another dimension; all inputs have units."""
    dim = call.argument(1, "dim")
    dim = 0 if dim is None else dim
    rank = len(call.shapes[source])
    if not isinstance(dim, int) or dim % rank == place.dim:
        raise call.mixing("joins them with others")
    inputs = tuple(call.node.all_input_nodes)
    return RuleResult(place, aligned=inputs if len(inputs) > 1 else ())


def expanded(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Expansion along other dimensions; the arguments may give the size of the unit dimension."""
    behind = len(call.shapes[source]) - place.dim
    dim = len(call.shapes[call.node]) - behind
    same = call.shapes[source][place.dim] == call.shapes[call.node][dim]
    if call.node.kwargs or not same or not isinstance(call.listed()[dim], int):
        raise call.mixing("computes their number")
    return RuleResult(UnitDim(dim, place.run), has_size=True)


def unsqueezed(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Insertion of a dimension of length 1."""
    dim = call.argument(1, "dim")
    if not isinstance(dim, int):
        raise call.mixing()
    new = dim % len(call.shapes[call.node])
    return RuleResult(UnitDim(place.dim + (new <= place.dim), place.run))


def normalized(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Norm over trailing dimensions, computed for each unit separately."""
    shape = getattr(call.module, "normalized_shape", None) or call.argument(1, "normalized_shape")
    rank = len(call.shapes[source])
    if not isinstance(shape, tuple | list) or place.dim >= rank - len(shape):
        raise call.mixing()
    return RuleResult(place)


def cached(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Cache update: keys and values are appended and returned with the earlier ones."""
    _, keys, values, *_ = call.node.args
    if source not in (keys, values):
        raise call.mixing()
    return RuleResult(place, aligned=(keys, values))  # type: ignore[arg-type]


def attention(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Attention: queries, keys and values have heads as units.

    With grouped queries, a unit is the group of heads that share keys and values.
    """
    inputs = tuple(call.argument(n, name) for n, name in enumerate(("query", "key", "value")))
    mask = call.argument(3, "attn_mask")
    heads = call.shapes[source][-3:-2]
    if place.dim != len(call.shapes[source]) - 3:
        raise BlockedError(f"they reach '{call.node.name}' as something else than heads")
    shared = call.shapes[inputs[0]][-3] // heads[0]  # query heads per head of the source
    place = UnitDim(place.dim, place.run * shared)
    if isinstance(mask, fx.Node) and call.shapes[mask][-3:-2] not in ((), (1,)):
        raise call.mixing("has a mask per head")
    return RuleResult(place, aligned=inputs)


def read_size(call: Call, source: fx.Node, place: UnitDim) -> RuleResult:
    """Reads the length of one dimension or of all."""
    dim = call.argument(1, "dim")
    if not isinstance(dim, int) or dim % len(call.shapes[source]) == place.dim:
        raise call.mixing("reads their number")
    return RuleResult(None)
