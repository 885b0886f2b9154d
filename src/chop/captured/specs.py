"""Specs: shapes, dtypes and structure of inputs, and reports on automatic leaves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chop.captured.state.values import same_content
from chop.errors import CaptureError, GuardError

_MASK_SIZE = 4096
"""Maximum number of elements of a boolean example that a spec stores."""


@dataclass(frozen=True)
class TensorSpec:
    """Description of a tensor without its data.

    Args:
        shape: per dimension a size, or an expression of input sizes such as `"x.shape[0]"`.
        dtype: element type.
        low: smallest element of an integer example, which bounds the valid values.
        high: largest element.
        mask: flattened elements of a boolean example, if there are at most `_MASK_SIZE`. The
            selection by a mask has to fit the other inputs (`masked_scatter`).
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype
    low: int = 0
    high: int = 1
    mask: tuple[bool, ...] = ()

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """Describes an example."""
        shape = tuple(tensor.shape)
        plain = tensor.numel() > 0 and not tensor.is_meta
        if not plain or tensor.is_floating_point() or tensor.is_complex():
            return cls(shape, tensor.dtype)
        keeps = tensor.dtype == torch.bool and tensor.numel() <= _MASK_SIZE
        mask = tuple(tensor.flatten().tolist()) if keeps else ()
        return cls(shape, tensor.dtype, int(tensor.min()), int(tensor.max()), mask)

    def dummy(self, generator: torch.Generator | None = None) -> Tensor:
        """Returns a tensor like the example: normal floats, integers from `low` to `high`, or its
        mask.

        Raises:
            CaptureError: a size is an expression.
        """
        sizes = [size for size in self.shape if isinstance(size, int)]
        if len(sizes) != len(self.shape):
            raise CaptureError(f"expected numeric sizes, got {self.shape}")
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(sizes, dtype=self.dtype, generator=generator)
        if len(self.mask) == math.prod(sizes) and self.mask:
            return torch.tensor(self.mask).reshape(sizes)
        # Integers may be indices or class labels, which are valid in the range of the example only.
        values = torch.randint(self.low, self.high + 1, sizes, generator=generator)
        return values.to(self.dtype)


@dataclass(frozen=True)
class FieldsSpec:
    """Description of a dataclass input.

    Args:
        class_name: its class.
        fields: a description per field.
    """

    class_name: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class LeafReport:
    """Reason why a capture made a submodule a leaf.

    Args:
        path: its dotted path.
        class_name: its class.
        where: `file:line` that could not be traced.
        reason: description of the problem.
        operators: number of torch calls that the leaf hides.
    """

    path: str
    class_name: str
    where: str
    reason: str
    operators: int


def check_matches(name: str, spec: Any, value: Any) -> None:
    """Raises GuardError if a value differs from the example in more than sizes."""
    if isinstance(spec, TensorSpec):
        rank = len(spec.shape)
        same = isinstance(value, Tensor) and value.dim() == rank
        expected = f"a tensor with {rank} dimensions"
    elif isinstance(spec, FieldsSpec):
        same = all(hasattr(value, field) for field in spec.fields)
        expected = f"a {spec.class_name}"
    elif isinstance(spec, Mapping):
        same = isinstance(value, Mapping) and value.keys() == spec.keys()
        expected = f"the keys {', '.join(map(str, spec))}"
    elif isinstance(spec, tuple | list):
        same = isinstance(value, tuple | list) and len(value) == len(spec)
        expected = f"{len(spec)} values"
    else:
        same, expected = same_content(spec, value), repr(spec)
    if not same:
        way_out = "capture the model again with such an example"
        is_array = hasattr(value, "__len__") and not isinstance(value, Tensor | Mapping | str)
        if isinstance(spec, TensorSpec) and is_array:
            array = "x.to_numpy()" if hasattr(value, "to_numpy") else "x"
            way_out = f"pass torch.as_tensor({array}, dtype={spec.dtype})"
        raise GuardError(
            f"the graph was captured for {name} as {expected}, got {_described(value)}; {way_out}"
        )
    if isinstance(spec, FieldsSpec):
        for field, inner in spec.fields.items():
            check_matches(f"{name}.{field}", inner, getattr(value, field))
    elif isinstance(spec, Mapping | tuple | list):
        for key in spec if isinstance(spec, Mapping) else range(len(spec)):
            check_matches(f"{name}[{key!r}]", spec[key], value[key])


def _described(value: Any) -> str:
    """Describes a value in a few words."""
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"the keys {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"{len(value)} values"
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"


def cast_floats(spec: Any, cast: Callable[[torch.dtype], torch.dtype]) -> Any:
    """Returns the description of an input after a cast of floating-point tensors."""

    def cast_tensor(tensor: Any) -> Any:
        floats = isinstance(tensor, TensorSpec) and tensor.dtype.is_floating_point
        return dataclasses.replace(tensor, dtype=cast(tensor.dtype)) if floats else tensor

    return map_specs(cast_tensor, spec)


def map_specs(
    function: Callable[[Any], Any], spec: Any, make: Callable[..., Any] = FieldsSpec
) -> Any:
    """Applies a function to the descriptions of single values in a nested description.

    Args:
        function: maps the description of a value.
        spec: the description.
        make: creates a nested object from its class name and fields.
    """
    if isinstance(spec, FieldsSpec):
        return make(spec.class_name, map_specs(function, spec.fields, make))
    if isinstance(spec, Mapping):
        return {key: map_specs(function, item, make) for key, item in spec.items()}
    if isinstance(spec, tuple | list):
        return type(spec)(map_specs(function, item, make) for item in spec)
    return function(spec)
