"""Floating-point operations of calls, as `torch.utils.flop_counter.FlopCounterMode` counts them.

Layers with a weight have a rule in the operator table. Other products (einsum, attention, recurrent
layers, chains of matrices) run once on meta tensors under torch's own counter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from chop.base.nested import tree_map, tree_tensors
from chop.ir.ops import (
    STANDARD_MODULES,
    Kind,
    Operator,
    get_called_row,
    get_node_row,
    module_of_node,
)
from chop.nn.packed import PackedOperator
from chop.nn.quantized import QuantizedOperator
from chop.private.modules import own_parameters

_MAY_MULTIPLY = (Kind.PRODUCT, Kind.OTHER)
_MAX_CACHED = 10_000
"""Maximum number of cached counts; a search repeats the same calls."""


class FlopCounts:
    """Cached operation counts of calls."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def count_node(
        self, root: nn.Module, node: fx.Node, values: Mapping[fx.Node, Any], result: Any
    ) -> int:
        """Counts the operations of a node; 0 if it multiplies no matrices.

        Args:
            root: the module with the graph.
            node: one of its nodes.
            values: values of the nodes that it reads. Only shapes and dtypes matter.
            result: result of the node.
        """
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.get)
        module = module_of_node(node, root)
        if module is not None:
            return self.count_module(module, args, kwargs, result)
        if node.op not in ("call_function", "call_method"):
            return 0
        return self._count_function(get_node_row(node, root), node.target, args, kwargs, result)

    def count_module(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> int:
        """Counts the operations of a module call.

        Args:
            module: module that is called.
            args: positional arguments.
            kwargs: keyword arguments.
            result: result of the call.
        """
        row = get_called_row(module)
        if isinstance(module, QuantizedOperator) and module.function is not None:
            return self._count_function(row, module.function, args, kwargs, result)
        if row.flops is not None:
            return _by_rule(row, module, (args, kwargs), result)
        if row.kind not in _MAY_MULTIPLY or not _has_product(module):
            return 0
        key = (type(module), repr(module), _key((args, kwargs)))
        return self._counted(key, lambda: _on_meta(module), args, kwargs)

    def _count_function(
        self, row: Operator, target: Any, args: Any, kwargs: Any, result: Any
    ) -> int:
        if row.layout or row.kind not in _MAY_MULTIPLY:
            return 0
        home = (getattr(target, "__module__", None) or "torch").split(".")[0]
        operations = 0
        if home in STANDARD_MODULES or (home != "chop" and row.flops is None):
            function = target if callable(target) else _method(str(target))
            operations = self._counted(
                (target, _key((args, kwargs))), lambda: function, args, kwargs
            )
        if operations or row.flops is None:
            return operations
        # torch does not count products of a matrix and a vector.
        return _by_rule(row, None, (args, kwargs), result)

    def _counted(self, key: Any, make: Callable[[], Any], args: Any, kwargs: Any) -> int:
        if key not in self._known:
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()
            self._known[key] = _count(make, args, kwargs)
        return self._known[key]


def _by_rule(row: Operator, module: nn.Module | None, given: Any, result: Any) -> int:
    shapes = [tuple(x.shape) for x in tree_tensors(given)]
    if isinstance(module, PackedOperator):
        shapes.append(tuple(module.packed_shapes["weight"]))
    elif module is not None and "weight" in own_parameters(module):
        shapes.append(tuple(module.get_parameter("weight").shape))
    first = next(iter(tree_tensors(result)), None)
    assert row.flops is not None
    return 0 if first is None else int(row.flops(shapes, tuple(first.shape)))


def _count(make: Callable[[], Any], args: Any, kwargs: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    from chop.private.symbolic_shapes import outside_fake_mode

    with outside_fake_mode(), torch.no_grad():
        try:
            function = make()
            args, kwargs = (tree_map(_without_data, value) for value in (args, kwargs))
            with FlopCounterMode(display=False) as counter:
                function(*args, **kwargs)
        except Exception:
            # Calls that need values (a module's own table, an index) cannot be counted.
            return 0
    return int(counter.get_total_flops())


def _without_data(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


def _on_meta(module: nn.Module) -> nn.Module:
    tensors = [*module.parameters(), *module.buffers()]
    twins: dict[int, Any] = {}
    for x in tensors:
        made = _without_data(x)
        is_parameter = isinstance(x, nn.Parameter)
        twins[id(x)] = nn.Parameter(made, x.requires_grad) if is_parameter else made
    return copy.deepcopy(module, twins)


def _has_product(module: nn.Module) -> bool:
    """Returns whether a module has matrices; one without may still multiply its inputs."""
    return any(x.dim() > 1 for x in module.parameters()) or not any(True for _ in module.children())


def _method(name: str) -> Callable[..., Any]:
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def _key(value: Any) -> Any:
    """Returns a cache key that is equal for arguments of equal shapes and constants."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Mapping):
        return tuple((name, _key(item)) for name, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_key, value))
    return repr(value)
