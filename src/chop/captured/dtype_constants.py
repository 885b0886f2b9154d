"""Constants of a graph that follow the dtype of its model, so that `graph.to(dtype)` is correct.

`x.to(hidden.dtype)` and `x.to(torch.float32)` are the same constant in a graph, but only the first
becomes bfloat16 with the model. A second recording of the model in another dtype distinguishes
them: constants that differ there follow. If the graph has such a constant, the recording in
`train()`, which is needed anyway, uses that dtype.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.base.nested import tree_map
from chop.captured.record import CaptureRecord
from chop.captured.specs import cast_floats
from chop.private.modules import own_buffers, own_parameters
from chop.private.torch_api import tree_leaves

# float16 is not used: models treat it specially, and some operators lack it.
_PROBES = (torch.bfloat16, torch.float64, torch.float32)
_CASTS: Mapping[str, torch.dtype] = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
_LIMITS = ("min", "max", "eps", "tiny", "resolution")
DTYPE, UPCAST = "dtype", "float32 of halves"
FOLLOWS = "follows_dtype"
"""Key of `node.meta`: positions of constants that follow the dtype, and their relations to it."""


class AmbiguousDtypeError(Exception):
    """Raised when another dtype changes a recording in a way that no constant explains."""


@dataclass(frozen=True)
class DtypeProbe:
    """Dtype of a second recording.

    Args:
        dtype: dtype of the recording.
        own: dtypes of the model.
    """

    dtype: torch.dtype
    own: frozenset[torch.dtype]

    def relation_to_dtype(self, ours: Any, theirs: Any) -> str | None:
        """Returns the relation of a constant to the dtype: "dtype" itself or the name of a limit of
        it.

        Returns: None if the dtype is not the reason for the difference.
        """
        if isinstance(ours, torch.dtype):
            return DTYPE if ours in self.own and theirs == self.dtype else None
        if not isinstance(ours, float) or not isinstance(theirs, float):
            return None
        for limit in _LIMITS:
            values = {getattr(torch.finfo(dtype), limit) for dtype in self.own}
            if ours in values and theirs == getattr(torch.finfo(self.dtype), limit):
                return limit
        return None

    def constant_dtype(self, constant: Any) -> torch.dtype:
        """Returns the dtype that a constant is, or is a limit of."""
        if isinstance(constant, torch.dtype):
            return constant
        return next(
            dtype
            for dtype in self.own
            if constant in [getattr(torch.finfo(dtype), limit) for limit in _LIMITS]
        )

    def cast(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """Casts the floating-point tensors of example inputs to the dtype of the recording."""

        def cast(value: Any) -> Any:
            floats = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(self.dtype) if floats else value

        return {name: tree_map(cast, value) for name, value in example.items()}

    @contextlib.contextmanager
    def fake_members(
        self, model: nn.Module, make: Callable[[Tensor, torch.dtype], Tensor]
    ) -> Iterator[None]:
        """Replaces the float parameters and buffers of a model by tensors without data inside the
        block.

        Args:
            model: the model; its own tensors are restored.
            make: creates a tensor like another one, of another dtype.
        """
        made: dict[int, Tensor] = {}
        with contextlib.ExitStack() as changes:
            for module in model.modules():
                for members in (own_parameters(module), own_buffers(module)):
                    for name, tensor in members.items():
                        if not _is_plain_float(tensor):
                            continue
                        assert tensor is not None
                        changes.callback(members.__setitem__, name, tensor)  # type: ignore[arg-type]
                        if id(tensor) not in made:
                            made[id(tensor)] = make(tensor, self.dtype)
                        members[name] = made[id(tensor)]  # type: ignore[assignment]
            yield


def _is_plain_float(tensor: Tensor | None) -> bool:
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided  # type: ignore[union-attr]
    return plain and tensor.is_floating_point()  # type: ignore[union-attr]


def float_dtypes(model: nn.Module) -> frozenset[torch.dtype]:
    """Returns the floating dtypes of parameters and buffers, except one-byte formats."""
    tensors = [*model.parameters(), *model.buffers()]
    return frozenset(x.dtype for x in tensors if x.is_floating_point() and x.dtype.itemsize > 1)


def dtype_probes(model: nn.Module) -> list[DtypeProbe]:
    """Returns other dtypes to record a model in, best first; empty if it has no floats."""
    own = float_dtypes(model)
    return [DtypeProbe(dtype, own) for dtype in _PROBES if own and dtype not in own][:2]


def has_dtype_constants(graph: fx.Graph, own: Collection[torch.dtype]) -> bool:
    """Returns whether a graph has constants that may follow a model with the dtypes `own`."""
    limits = {getattr(torch.finfo(dtype), limit) for dtype in own for limit in _LIMITS}
    return any(
        value in (own if isinstance(value, torch.dtype) else limits)
        for node in graph.nodes
        for value in tree_leaves((node.args, node.kwargs))
        if isinstance(value, torch.dtype | float)
    )


# --- casts that a model makes in half precision only ---------------------------------------------


@dataclass
class MissingCast:
    """A cast that only the recording in another dtype has.

    Args:
        twin: its node in that recording.
        before: the node of our graph that it has to precede.
        readers: the nodes of our graph that have to read it, with the argument positions.
    """

    twin: fx.Node
    before: fx.Node
    readers: list[tuple[fx.Node, tuple[Any, ...]]] = field(default_factory=list)


def is_cast(node: fx.Node) -> bool:
    """Returns whether a node only casts a tensor."""
    return node.op == "call_method" and _cast_dtype(node) is not None


def _cast_dtype(node: fx.Node) -> torch.dtype | None:
    if node.target in _CASTS:
        return _CASTS[str(node.target)]
    arguments = (*node.args[1:], *node.kwargs.values())
    single = node.target == "to" and len(arguments) == 1
    return arguments[0] if single and isinstance(arguments[0], torch.dtype) else None


def get_source(node: Any, casts: Mapping[fx.Node, MissingCast]) -> Any:
    """Returns the node whose result passes through missing casts."""
    while node in casts:
        node = node.args[0]
    return node


def insert_casts(
    graph: fx.Graph,
    casts: list[MissingCast],
    ours: dict[fx.Node, fx.Node],
    probe: DtypeProbe,
    values: dict[fx.Node, Any],
) -> None:
    """Adds casts that change nothing in the dtype of the model, and follow it.

    Args:
        graph: our graph; it is changed.
        casts: its missing casts, in order.
        ours: our node for each node of the other recording.
        probe: dtype of that recording.
        values: values of our nodes; those of the casts are added.

    Raises:
        AmbiguousDtypeError: a cast would change a result; the graph is unchanged.
    """
    missing = {cast.twin: cast for cast in casts}
    sources = [values.get(ours[get_source(cast.twin, missing)]) for cast in casts]
    if casts and (len(probe.own) > 1 or {getattr(x, "dtype", None) for x in sources} != probe.own):
        raise AmbiguousDtypeError
    for cast, value in zip(casts, sources, strict=True):
        (dtype,) = probe.own
        source: Any = cast.twin.args[0]
        what = DTYPE if _cast_dtype(cast.twin) == probe.dtype else UPCAST
        with graph.inserting_before(cast.before):
            node = graph.call_method("to", (ours[source], _value(what, dtype)))
        node.meta.update(cast.twin.meta)
        node.meta[FOLLOWS] = [((0, 1), what, dtype)]
        ours[cast.twin], values[node] = node, value
        for reader, place in cast.readers:
            args, kwargs = replaced((reader.args, reader.kwargs), place, node)
            reader.args, reader.kwargs = tuple(args), kwargs


# --- constants that follow -----------------------------------------------------------------------


def list_dtype_constants(graph: fx.Graph) -> dict[str, Any]:
    """Returns `(place, what, dtype)` of each constant that follows the dtype, by node."""
    constants: dict[str, Any] = {}
    for node in graph.nodes:
        for place, what, dtype in node.meta.pop(FOLLOWS, ()):
            constants.setdefault(node.name, []).append((place, what, dtype))
    return constants


def _recast_constants(
    graph: fx.Graph, constants: Mapping[str, Any], cast: Callable[[torch.dtype], torch.dtype]
) -> dict[str, Any]:
    """Updates the constants of a graph for a change of the model's dtype.

    Args:
        graph: the graph; it is changed.
        constants: from `list_dtype_constants`. Nodes that a pass changed or removed are skipped.
        cast: maps an old dtype to the new one.
    Returns: the constants with the new dtypes.
    """
    nodes = {node.name: node for node in graph.nodes}
    changed: dict[str, Any] = {}
    for name, entries in constants.items():
        for place, what, dtype in entries:
            new = cast(dtype)
            arguments = (nodes[name].args, nodes[name].kwargs) if name in nodes else ()
            if new.is_floating_point and _at(arguments, place) == _value(what, dtype):
                args, kwargs = replaced(arguments, place, _value(what, new))
                nodes[name].args, nodes[name].kwargs = tuple(args), kwargs
                dtype = new
            changed.setdefault(name, []).append((place, what, dtype))
    return changed


def _value(what: str, dtype: torch.dtype) -> Any:
    if what == UPCAST:
        return torch.float32 if dtype.itemsize < torch.float32.itemsize else dtype
    return dtype if what == DTYPE else getattr(torch.finfo(dtype), what)


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    try:
        for step in place:
            value = getattr(value, step) if isinstance(value, slice) else value[step]
    except (LookupError, TypeError, AttributeError):
        return None
    return value


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Returns nested arguments with the value at one place replaced."""
    if not place:
        return new
    first, *rest = place
    if isinstance(value, Mapping):
        return {k: replaced(v, tuple(rest), new) if k == first else v for k, v in value.items()}
    if isinstance(value, slice):
        parts = {"start": value.start, "stop": value.stop, "step": value.step}
        parts = replaced(parts, place, new)
        return slice(parts["start"], parts["stop"], parts["step"])
    kind = tuple if isinstance(value, tuple) else list
    return kind(
        replaced(item, tuple(rest), new) if index == first else item
        for index, item in enumerate(value)
    )


def follow_cast(
    record: CaptureRecord,
    graph: fx.Graph,
    own: Iterable[torch.dtype],
    cast: Callable[[torch.dtype], torch.dtype],
) -> bool:
    """Updates a record and the constants of a graph for a cast of the model.

    Args:
        record: record of the captured module.
        graph: its graph.
        own: floating dtypes of its tensors before the cast.
        cast: maps an old dtype to the new one.

    Returns: whether constants of the graph have changed.

    Warns: if it is unknown which constants follow the model.
    """
    record.example_inputs = {
        name: cast_floats(spec, cast) for name, spec in record.example_inputs.items()
    }
    if record.follows_dtype is None:
        recorded = [dtype for dtype in own if cast(dtype) != dtype]
        if has_dtype_constants(graph, recorded):
            warnings.warn(
                f"the graph of {record.class_name} has constants of {recorded[0]}, and it is "
                "unknown which of them follow the model to another dtype; capture the model "
                "after the cast",
                stacklevel=4,
            )
        return False
    before = record.follows_dtype
    record.follows_dtype = _recast_constants(graph, before, cast)
    return record.follows_dtype != before
