"""What every quantised operator shares: its spec, and how it takes over a float module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from chop.formats import QuantSpec

T = TypeVar("T")


class QuantizedOperator(nn.Module):
    """Mixin that gives a `torch.nn` class a `QuantSpec`.

    `class QuantLinear(QuantizedOperator, nn.Linear)` takes the constructor arguments of
    `nn.Linear` plus `config`, and has the same parameters, buffers and `state_dict` keys.
    """

    operands: ClassVar[tuple[str, ...]] = ("data_in",)
    """What the operator has to quantise, `data_out` aside."""
    fallback: ClassVar[Mapping[str, str]] = {}
    """Operands that take another's format when a config leaves them out."""

    spec: QuantSpec

    def __init__(
        self, *args: Any, config: QuantSpec | Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.spec = self.parse_spec(config or {}, type(self).__name__)

    @classmethod
    def parse_spec(cls, config: QuantSpec | Mapping[str, Any], where: str) -> QuantSpec:
        """The spec a config mapping means for this operator; see `QuantSpec.parse`."""
        return QuantSpec.parse(config, cls.operands, cls.fallback, where)

    @classmethod
    def from_float(cls, module: nn.Module, spec: QuantSpec) -> Self:
        """Takes over `module`: the same parameters, buffers, hooks, device, dtype and mode.

        Nothing is copied, so nothing can be forgotten; use the float module no more. Formats of
        weight and bias that are to be derived are derived from the tensors now.
        """
        twin = cls.__new__(cls)
        twin.__dict__.update(module.__dict__)
        own = {name: getattr(module, name, None) for name in ("weight", "bias")}
        twin.spec = spec.fitted({name: x for name, x in own.items() if isinstance(x, Tensor)})
        return twin

    def quantize(self, operand: str, x: T) -> T:
        """Fake-quantises `x` as that operand; what is no floating tensor passes unchanged."""
        if isinstance(x, Tensor) and torch.is_floating_point(x):
            return getattr(self.spec, operand)(x, self.spec.gradient)
        return x

    def extra_repr(self) -> str:
        """The float module's text and the formats."""
        chosen = [f"{name}={fmt.label}" for name, fmt in self.spec.items() if not fmt.is_identity]
        return ", ".join(text for text in (super().extra_repr(), *chosen) if text)
