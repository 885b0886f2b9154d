"""Rank guards: what a model's Python learns of a tensor that `squeeze` has taken dimensions from.

`squeeze` drops the dimensions of size one, and none of a free size while a model is recorded. The
graph runs `squeeze` anew and has the same tensor at any size; only what the model's Python makes of
its shape is that of the recording.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chop.captured.leaves import tensors_in

_READS = frozenset(
    {
        *("shape", "ndim", "size", "dim", "ndimension", "stride", "__len__", "__iter__"),
        *("unbind", "split", "chunk", "tensor_split"),
    }
)
_OF_ANY_RANK = frozenset({"view", "reshape"})


class SqueezedRanks:
    """The sizes that may not be one where the rank of a tensor is that of the recording."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Any, ...]] = {}

    def note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Notes what the rank of a result depends on.

        Args:
            function: of torch; None: a module or another function.
            args: its arguments.
            kwargs: the same by name.
            result: kept alive by the recorder.
        """
        name = getattr(function, "__name__", "")
        sizes = [
            x for tensor in tensors_in([args, kwargs]) for x in self._sizes.get(id(tensor), ())
        ]
        if name.startswith("squeeze"):
            sizes += _dropped_where_one(*args, **kwargs)
        if sizes and name not in _OF_ANY_RANK:
            for tensor in tensors_in(result):
                self._sizes[id(tensor)] = tuple(sizes)

    def ask(self, name: str, args: Any) -> None:
        """Asks whether the sizes are one, where the model's Python is about to read a shape."""
        if name in _READS and args and isinstance(args[0], Tensor):
            for size in self._sizes.get(id(args[0]), ()):
                bool(size != 1)


def _dropped_where_one(input: Tensor, dim: int | tuple[int, ...] | None = None) -> list[Any]:
    """The free sizes among those that `squeeze` looks at."""
    dims = range(input.dim()) if dim is None else dim if isinstance(dim, tuple | list) else (dim,)
    sizes = [input.shape[each] for each in dims]
    return [size for size in sizes if isinstance(size, torch.SymInt)]
