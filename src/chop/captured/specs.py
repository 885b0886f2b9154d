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
"""Elements of the largest boolean example that a spec keeps."""


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor looks like, without its data.

    Args:
        shape: per dimension a size, or an expression of input sizes such as `"x.shape[0]"`.
        dtype: its element type.
        low: the smallest element of an example, if it shows which integers are valid.
        high: the largest.
        mask: elements of a boolean example in order, if there are at most `_MASK_SIZE`. The
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
        """A tensor like the example: normal floats, integers from `low` to `high`, or its mask.

        Raises:
            CaptureError: a size is an expression.
        """
        sizes = [size for size in self.shape if isinstance(size, int)]
        if len(sizes) != len(self.shape):
            raise CaptureError(f"expected sizes that are numbers, got {self.shape}")
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(sizes, dtype=self.dtype, generator=generator)
        if len(self.mask) == math.prod(sizes) and self.mask:
            return torch.tensor(self.mask).reshape(sizes)
        values = torch.randint(self.low, self.high + 1, sizes, generator=generator)
        return values.to(self.dtype)


@dataclass(frozen=True)
class FieldsSpec:
    """What a dataclass that is an input looks like.

    Args:
        class_name: its class.
        fields: a description per field.
    """

    class_name: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class LeafReport:
    """Why a submodule was made a leaf by the capture itself.

    Args:
        path: its dotted path.
        class_name: its class.
        where: `file:line` of what could not be written down.
        reason: what that was.
        operators: how many torch calls the leaf hides.
    """

    path: str
    class_name: str
    where: str
    reason: str
    operators: int


def check_matches(name: str, spec: Any, value: Any) -> None:
    """Raises GuardError where a value has another form than the example: only sizes are free."""
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
        raise GuardError(
            f"captured for {name} as {expected}, got {_described(value)}; capture the model again "
            "with such an example"
        )
    if isinstance(spec, FieldsSpec):
        for field, inner in spec.fields.items():
            check_matches(f"{name}.{field}", inner, getattr(value, field))
    elif isinstance(spec, Mapping | tuple | list):
        for key in spec if isinstance(spec, Mapping) else range(len(spec)):
            check_matches(f"{name}[{key!r}]", spec[key], value[key])


def _described(value: Any) -> str:
    """What a value is, in a few words."""
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"the keys {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"{len(value)} values"
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"


def cast_floats(spec: Any, cast: Callable[[torch.dtype], torch.dtype]) -> Any:
    """The description of an input after a change of dtype, which leaves integers alone."""

    def of_tensor(tensor: Any) -> Any:
        floats = isinstance(tensor, TensorSpec) and tensor.dtype.is_floating_point
        return dataclasses.replace(tensor, dtype=cast(tensor.dtype)) if floats else tensor

    return map_specs(of_tensor, spec)


def map_specs(
    function: Callable[[Any], Any], spec: Any, make: Callable[..., Any] = FieldsSpec
) -> Any:
    """A nested description with a function applied to what describes single values.

    Args:
        function: takes the description of a value.
        spec: the description.
        make: takes the class name and the fields of a nested object.
    """
    if isinstance(spec, FieldsSpec):
        return make(spec.class_name, map_specs(function, spec.fields, make))
    if isinstance(spec, Mapping):
        return {key: map_specs(function, item, make) for key, item in spec.items()}
    if isinstance(spec, tuple | list):
        return type(spec)(map_specs(function, item, make) for item in spec)
    return function(spec)
