"""What every quantised operator shares: its spec, and how it takes over a float module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from chop.errors import ConfigError
from chop.formats import QuantSpec

T = TypeVar("T")


def _hide(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, 0)


class QuantizedOperator(nn.Module):
    """Mixin that gives a `torch.nn` class a `QuantSpec`.

    `class QuantLinear(QuantizedOperator, nn.Linear)` takes the constructor arguments of
    `nn.Linear` plus `config`, and has the same parameters, buffers and `state_dict` keys.

    With float formats it computes what the `torch.nn` class does. So it is also what carries the
    mask of a pruned weight: a boolean buffer `weight_mask` of the weight's shape, True where a
    weight is kept. The stored weight stays dense; what the mask hides is zero to the operator, and
    gets no gradient.
    """

    operands: tuple[str, ...] = ("data_in",)
    """What the operator has to quantise, `data_out` aside."""
    fallback: ClassVar[Mapping[str, str]] = {}
    """Operands that take another's format when a config leaves them out."""
    function: Callable[..., Any] | None = None
    """The function whose calls the operator replaces; None if it replaces a module."""

    spec: QuantSpec
    weight_mask: Tensor

    def __init__(
        self, *args: Any, config: QuantSpec | Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        present = self.present_operands(self)
        self.spec = QuantSpec.parse(config or {}, present, self.fallback, type(self).__name__)

    @classmethod
    def present_operands(cls, module: nn.Module) -> list[str]:
        """The operands that `module` has of those of this operator: a layer may lack a bias."""
        names = cls.operands
        return [n for n in names if n == "data_in" or getattr(module, n, None) is not None]

    @classmethod
    def from_float(cls, module: nn.Module, spec: QuantSpec) -> Self:
        """Takes over `module`: the same parameters, buffers, hooks, device, dtype and mode.

        Nothing is copied, so nothing can be forgotten; use the float module no more. Formats of
        weight and bias that are to be derived are derived from the tensors now.

        Raises:
            ConfigError: the module's weight is computed by a parametrisation.
        """
        if is_parametrized(module):
            raise ConfigError(
                f"{type(module).__name__}: its weight is parametrised; make it a plain one first: "
                "torch.nn.utils.parametrize.remove_parametrizations(module, 'weight')."
            )
        if isinstance(module, QuantizedOperator):
            module = module.unpack()
        twin = cls.__new__(cls)
        twin.__dict__.update(module.__dict__)
        present = cls.present_operands(module)
        tensors = {name: twin.effective(name) for name in present if name != "data_in"}
        twin.spec = spec.only(present).fitted(tensors)
        return twin

    def with_spec(self, spec: QuantSpec) -> Self:
        """The same operator in other formats, with the same parameters."""
        return self.from_float(self, spec)

    def unpack(self) -> QuantizedOperator:
        """The operator with its weight as a parameter: itself, unless it is packed."""
        return self

    def quantize(self, operand: str | None, x: T) -> T:
        """Fake-quantises `x` as that operand; what is no floating tensor passes unchanged."""
        if operand is None or not isinstance(x, Tensor) or not torch.is_floating_point(x):
            return x
        number_format = getattr(self.spec, operand)
        mask = self.weight_mask if operand == "weight" and self.is_pruned else None
        if mask is None:
            return number_format(x, self.spec.gradient)
        # Twice: shared scales must not see what is hidden, and not every format has a zero.
        return _hide(number_format(_hide(x, mask), self.spec.gradient), mask)

    @property
    def is_pruned(self) -> bool:
        """True when the weight has a mask."""
        return "weight_mask" in self._buffers

    def effective(self, operand: str) -> Tensor:
        """The parameter of that name as it enters the operator: masked, not yet quantised."""
        x = getattr(self, operand)
        return _hide(x, self.weight_mask) if operand == "weight" and self.is_pruned else x

    def extra_repr(self) -> str:
        """The float module's text and the formats."""
        chosen = [f"{name}={fmt.label}" for name, fmt in self.spec.items() if not fmt.is_identity]
        return ", ".join(text for text in (super().extra_repr(), *chosen) if text)
