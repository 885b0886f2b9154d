"""Arguments of graph nodes: Python values with nodes in place of tensors and sizes."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from chop.capture.sizes.symbols import Sizes, is_symbolic
from chop.captured.huggingface.cache import is_cache, traced_node
from chop.errors import CaptureError

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.layout,
    torch.memory_format,
)

# Pattern of a symbolic size in a text; a cheap test before the search for names.
_SYMBOL = re.compile(r"s\d+")

_PYTHON_DTYPES = {float: torch.float64, int: torch.int64, bool: torch.bool}


class ArgumentWriter:
    """Conversion of the arguments of torch calls into arguments of graph nodes.

    Args:
        graph: receives helper nodes (a named tuple, a device).
        sizes: writes symbolic numbers.
        find_node: returns the node of a tensor.
    """

    def __init__(
        self, graph: fx.Graph, sizes: Sizes, find_node: Callable[[Tensor], fx.Node]
    ) -> None:
        self._graph = graph
        self._sizes = sizes
        self._find_node = find_node
        self._device: torch.device | None = None
        self._device_source: fx.Node | None = None
        self._device_node: fx.Node | None = None

    def follow_device(self, device: torch.device, source: fx.Node) -> None:
        """Replaces later uses of the first input's device by its device at run time."""
        if self._device_source is None:
            self._device, self._device_source = device, source

    def write(self, value: Any) -> Any:
        """Returns a value with nodes in place of its tensors and symbolic numbers.

        Raises:
            CaptureError: a graph cannot contain such a value.
        """
        if isinstance(value, fx.Node):
            return value
        if isinstance(value, Tensor):
            return self._find_node(value)
        if is_symbolic(value):
            return self._sizes.write(value)
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, str):
            self._check_text(value)
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, torch.device):
            return self._write_device(value)
        if isinstance(value, slice):
            return slice(*map(self.write, (value.start, value.stop, value.step)))
        if isinstance(value, Mapping):
            return self._write_mapping(value)
        if is_cache(value):
            return traced_node(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._graph.call_function(type(value), tuple(map(self.write, value)))
        if isinstance(value, tuple | list):
            return (tuple if isinstance(value, tuple) else list)(map(self.write, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._write_dataclass(value)
        if isinstance(value, type) and value in _PYTHON_DTYPES:
            return _PYTHON_DTYPES[value]
        raise CaptureError(f"a value of type {type(value).__qualname__} cannot be a graph argument")

    def _check_text(self, text: str) -> None:
        symbols = set(_SYMBOL.findall(text))
        if symbols and symbols & set(map(str, self._sizes.names())):
            raise CaptureError("a string computed from a size cannot be a graph argument")

    def _write_device(self, device: torch.device) -> Any:
        # A device that the model took from its input follows the input, so that a captured graph
        # can be moved.
        ours = self._device
        if ours is None or (device.type, device.index or 0) != (ours.type, ours.index or 0):
            return device
        assert self._device_source is not None
        if self._device_node is None:
            self._device_node = self._graph.call_function(getattr, (self._device_source, "device"))
        return self._device_node

    def _write_mapping(self, value: Mapping[Any, Any]) -> Any:
        items = {key: self.write(item) for key, item in value.items()}
        if not dataclasses.is_dataclass(value):
            return items
        # Output dataclasses of transformers omit fields that are None.
        given = {key: item for key, item in items.items() if item is not None}
        return self._graph.call_function(type(value), (), given)

    def _write_dataclass(self, value: Any) -> fx.Node:
        fields = {
            field.name: self.write(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
        return self._graph.call_function(type(value), (), fields)
