"""Rank guards: conditions on the number of dimensions after `squeeze`.

`squeeze` drops the dimensions of size one. During a recording it keeps all dynamic dimensions. The
graph runs `squeeze` again and gets the right tensor at any size, but the model's Python has read
the shape of the recording.
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
_RANK_INDEPENDENT = frozenset({"view", "reshape"})


class SqueezedRanks:
    """Sizes that must not be one for the rank of a tensor to be that of the recording."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Any, ...]] = {}

    def record(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Records the sizes that determine the rank of a result.

        Args:
            function: torch function; None: a module or another function.
            args: its arguments.
            kwargs: its keyword arguments.
            result: kept alive by the recorder.
        """
        name = getattr(function, "__name__", "")
        sizes = [
            x for tensor in tensors_in([args, kwargs]) for x in self._sizes.get(id(tensor), ())
        ]
        if name.startswith("squeeze"):
            sizes += _squeezable_sizes(*args, **kwargs)
        if sizes and name not in _RANK_INDEPENDENT:
            for tensor in tensors_in(result):
                self._sizes[id(tensor)] = tuple(sizes)

    def guard_shape_read(self, name: str, args: Any) -> None:
        """Adds guards on these sizes when the model's Python is about to read a shape."""
        if name in _READS and args and isinstance(args[0], Tensor):
            for size in self._sizes.get(id(args[0]), ()):
                bool(size != 1)


def _squeezable_sizes(input: Tensor, dim: int | tuple[int, ...] | None = None) -> list[Any]:
    """Returns the dynamic sizes among the dimensions that `squeeze` drops if they are one."""
    dims = range(input.dim()) if dim is None else dim if isinstance(dim, tuple | list) else (dim,)
    sizes = [input.shape[each] for each in dims]
    return [size for size in sizes if isinstance(size, torch.SymInt)]
