"""Base class of number formats.

A format is a frozen dataclass in its own file. Its fields are the config keys, and its `layout`
describes elements, groups and scales. The base class derives rounding, encoding, registration,
config parsing, fake-quantization with straight-through gradients, and validation.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from chop.base.plugins import (
    Registry,
)
from chop.config import check_fields
from chop.errors import ConfigError, describe, did_you_mean
from chop.formats import reference, transforms
from chop.formats.encoded import Encoded
from chop.formats.inputs import TAKING_TENSORS, check_tensor, checking, counting
from chop.formats.layout import Layout
from chop.formats.quantizer import GRADIENTS, Gradient, Quantizer
from chop.private.torch_api import is_transformed

INPUT_OPERANDS = ("data_in", "weight", "bias")
"""Operands that an operator reads."""
OPERANDS = (*INPUT_OPERANDS, "data_out")
"""Operands of an operator that can have a format."""
NAMELESS = "expected a name for configs, such as name: ClassVar[str] = 'my_format'."


class NumberFormat(Quantizer):
    """Finite set of numbers with a rounding rule.

    Subclasses are frozen dataclasses; their fields are config keys or derived from them. Defining a
    subclass registers it under `name` and `aliases`; base classes have no name.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    module_keys: ClassVar[Mapping[str, str | None]] = {}
    """Config keys of a whole module, and the field that each sets; None for keys without effect."""
    search_space: ClassVar[Mapping[str, Sequence[Any]]] = {}
    is_nested: bool = False
    """True if scales have scales of their own; see `flattened`."""
    key: str
    """Text form of the format, the inverse of `from_key`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        composed = [base for base in cls.__mro__[1:-1] if "layout" in vars(base)]
        if "round" in vars(cls) and composed[0] is not NumberFormat:
            raise ConfigError(
                f"number format {cls.__name__} replaces the rounding of {composed[0].__name__}, "
                "which codes and kernels rely on. Derive it from NumberFormat, or define its own "
                "element."
            )
        if "ranges" in vars(cls):
            raise ConfigError(
                f"number format {cls.__name__}: 'ranges' is not supported. Annotate the field "
                "instead: width: Annotated[int, Range(1, 24)], with Range from chop.config."
            )
        for name in TAKING_TENSORS & vars(cls).keys():
            setattr(cls, name, checking(vars(cls)[name], name))
        if "bits" in vars(cls):
            cls.bits = counting(vars(cls)["bits"])  # type: ignore[method-assign]
        for name in (cls.name, *cls.aliases) if "name" in vars(cls) else ():
            if not isinstance(name, str) or not name.isidentifier():
                raise ConfigError(
                    f"number format {cls.__name__}: expected a name of letters, digits and "
                    f"underscores, because a format is written as name:key=value, got "
                    f"{describe(name)}."
                )
            REGISTRY[name] = cls

    def __post_init__(self) -> None:
        if getattr(type(self), "name", None) is None:
            raise ConfigError(f"number format {type(self).__name__}: {NAMELESS}")
        check_fields(self, self.name)
        self.validate()
        fields = dataclasses.asdict(self)  # type: ignore[call-overload]
        object.__setattr__(self, "key", json.dumps({"name": self.name, **fields}))
        try:
            layout = self.layout() if self.is_fitted else None
        except ConfigError as error:  # of an element or a scaling, which do not know the format
            raise ConfigError(f"number format '{self.name}': {error}") from error
        if not isinstance(layout, Layout | None):
            raise ConfigError(f"{self.name}.layout(): expected a Layout, got {describe(layout)}.")
        # An infinity is counted by no statistic, but may make its group NaN.
        may_count = self.is_fitted and (layout is None or layout.has_nan)
        object.__setattr__(self, "neutral", 0.0 if may_count else -math.inf)
        object.__setattr__(self, "ignores_zeros", layout is not None and layout.ignores_zeros)

    def validate(self) -> None:
        """Checks that the fields fit together; raises ConfigError otherwise.

        The range of a single field is in its type, as `Annotated[int, Range(2, 32, "bits")]`.
        """

    @classmethod
    def nearest_valid(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces field values that MASE accepts but this format does not.

        Missing fields keep their defaults. Only MASE's flat form is read this way; see
        `chop.formats.mase_config`.
        """
        return dict(fields)

    @classmethod
    def ignores(cls, name: str, value: Any) -> bool:
        """Returns True if a field of MASE's configs has no meaning for this format."""
        return False

    def layout(self) -> Layout | None:
        """Returns the elements, groups and scales of a fitted format.

        Formats with their own rounding return None; backends do not support them. They override
        `round`, `bits`, `encode`, `decode` and `saturates`, and `code_bits` if rows are separable.
        """
        return None

    @property
    def _layout(self) -> Layout:
        layout = self.layout()
        if layout is None:
            raise ConfigError(
                f"number format {type(self).__name__}: expected a `layout` method that returns a "
                "Layout, or its own `round`, `bits`, `encode`, `decode` and `saturates`."
            )
        return layout

    @checking
    def round(self, x: Tensor) -> Tensor:
        """Rounds each element to the nearest representable value: the readable reference.

        Args:
            x: any shape, float64, float32, bfloat16 or float16.
        Returns: tensor of the shape and dtype of `x`. If the dtype cannot represent a value, it is
            rounded once more.
        """
        return reference.round_by(self.fitted(x)._layout, x)

    def bits(self, shape: Sequence[int] = ()) -> float:
        """Returns the storage per element in bits, including scales of a tensor of this shape.

        The shape `()` counts scales as in a full group.
        """
        return reference.bits(self._layout, shape)

    @property
    def code_bits(self) -> float:
        """Storage per element in bits, without scales."""
        return self._layout.element.bits

    @checking
    def encode(self, x: Tensor) -> Encoded:
        """Encodes `round(x)` as codes and scales.

        Raises:
            ConfigError: if the format is not fitted.
        """
        if not self.is_fitted:
            raise ConfigError(f"{self.label}: call `fitted(x)` before `encode(x)`.")
        return reference.encode(self._layout, x)

    def decode(self, encoded: Encoded) -> Tensor:
        """Decodes a tensor: `decode(encode(x))` equals `round(x)` bit for bit.

        Raises:
            ConfigError: if it is not the result of `encode`.
        """
        if not isinstance(encoded, Encoded):
            raise ConfigError(
                f"{self.name}: expected a result of encode, got {type(encoded).__name__}."
            )
        return reference.decode(self._layout, encoded)

    def is_row_separable(self, shape: Sequence[int]) -> bool:
        """Returns True if each index of the first axis has its own scales and whole bytes of codes.

        Rows of such an encoded tensor can be decoded separately.
        """
        layout = self.layout()
        return layout is not None and reference.is_row_separable(layout, shape)

    def flattened(self, encoded: Encoded) -> tuple[NumberFormat, Encoded, Tensor | None] | None:
        """Returns the same values with a float32 scale per group, for kernels; None by default.

        Formats with nested scales return a format without them, the tensor in it, and float32
        numbers (groups,) to subtract from the values of each group, or None.
        """
        return None

    @property
    def is_deterministic(self) -> bool:
        """False if `round` draws random numbers."""
        return True

    @property
    def cache_key(self) -> str | None:
        """The key, or None if `round` draws random numbers."""
        return self.key if self.is_deterministic else None

    @checking
    def saturates(self, x: Tensor) -> Tensor:
        """Returns a boolean mask of values beyond the largest representable one."""
        return reference.saturates(self.fitted(x)._layout, x)

    @checking
    def fitted(self, samples: Tensor) -> Self:
        """Returns this format with every `"auto"` field derived from samples.

        Formats without such fields return themselves.
        """
        return self

    @property
    def is_fitted(self) -> bool:
        """False if a field is still to be derived by `fitted`."""
        return True

    @property
    def is_identity(self) -> bool:
        """True for the identity format."""
        return False

    def __call__(self, x: Tensor, gradient: Gradient = "identity") -> Tensor:
        """Fake-quantizes: `round(x)` forward, a straight-through estimator backward.

        Forward-mode differentiation and the transforms of `torch.func` use the same derivative.

        Raises:
            ConfigError: if `x` is not a dense floating tensor, or if the gradient is unknown.

        Source of the estimator: Bengio et al. 2013, arXiv:1308.3432.
        """
        check_tensor(x, self.name)
        if gradient not in GRADIENTS:
            raise ConfigError(f"gradient '{gradient}': {did_you_mean(gradient, GRADIENTS)}")
        if is_transformed():
            return transforms.fake_quantize(x, self.key, clips=gradient == "clip")
        if gradient == "clip" and x.requires_grad and torch.is_grad_enabled():
            rounded: Tensor = torch.ops.chop.fake_quantize_marking(x, self.key)[0]
        else:
            rounded = torch.ops.chop.fake_quantize(x, self.key)
        return rounded

    @property
    def label(self) -> str:
        """Short text for tables and pictures: the width and fields that are not defaults."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        parts = [
            f"{name}={_shortened(value)}"
            for name, value in values.items()
            if name == "width" or value != self.get_default(name)
        ]
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    def get_default(self, field: str) -> Any:
        """Returns the default of a field given the other fields, or `MISSING`."""
        return type(self).__dataclass_fields__[field].default  # type: ignore[attr-defined]


def _shortened(value: Any) -> str:
    many = isinstance(value, tuple) and len(value) > MAX_SUMMARY_LENGTH
    return f"{len(value)} values" if many else str(value)


MAX_SUMMARY_LENGTH = 4
"""Longest sequence, in elements, that labels write out."""


def _format_class(name: str, value: Any) -> type[NumberFormat]:
    """Checks a class that a package declares as the number format `name`."""
    if not (isinstance(value, type) and issubclass(value, NumberFormat)):
        raise REGISTRY.misfit(name, value, "a subclass of NumberFormat")
    if getattr(value, "name", None) is None:
        raise ConfigError(f"number format {value.__name__}: {NAMELESS}")
    if name not in (value.name, *value.aliases):
        raise REGISTRY.misname(name, value, value.name)
    return value


REGISTRY: Registry[type[NumberFormat]] = Registry("formats", as_row=_format_class)
"""Format classes by name and alias."""


def formats() -> list[type[NumberFormat]]:
    """Returns every format class once, in the order of definition."""
    return list(dict.fromkeys(REGISTRY.values()))


def clamped(fields: Mapping[str, Any], name: str, largest: int) -> dict[str, Any]:
    """Returns the fields with an integer field limited to `largest`."""
    value = fields.get(name)
    return {**fields, name: largest} if isinstance(value, int) and value > largest else dict(fields)
